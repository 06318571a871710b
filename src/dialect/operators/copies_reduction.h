/*!
 * \file dialect/operators/copies_reduction.h
 * \brief Reads R.ccl.allreduce on a DTensor, as upstream's LowerGlobalViewToLocalView writes it.
 *
 * It reduces what the devices of the DTensor's mesh hold as their copies, which its type calls
 * replicated:
 *
 *     gv: DTensor((8, 8), "R") = R.dist.call_tir_local_view(matmul_local, (x, w), ..)
 *     lv: DTensor((8, 8), "R") = R.ccl.allreduce(gv, op_type="sum")
 *
 * where matmul_local sums a part of what is contracted.
 *
 * `in_group` means nothing here, since there is one program per mesh.
 */
#ifndef DISTIR_DIALECT_OPERATORS_COPIES_REDUCTION_H_
#define DISTIR_DIALECT_OPERATORS_COPIES_REDUCTION_H_

#include "ir/node.h"

namespace distir::dialect {

/*! \brief True if a call is R.ccl.allreduce. */
bool IsCopiesReduction(const ir::Expr& op);
/*!
 * \brief R.dist.all_reduce over all axes of the mesh of `value`, with the call's reduction.
 * \param value The call's argument, rewritten: a DTensor.
 * \throws ValueError where the argument is sharded, or the reduction is unknown.
 */
ir::Call MakeCopiesReduction(const ir::Call& call, const ir::Expr& value);
/*! \throws ValueError where the argument is a DTensor that is sharded. */
void RequireCopies(const ir::Call& call);
/*! \brief True if LegalizeRedistribute writes a call as collectives on DTensors:
 * R.dist.redistribute, and this. */
bool IsLegalizable(const ir::Call& call);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_COPIES_REDUCTION_H_
