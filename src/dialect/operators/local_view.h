/*!
 * \file dialect/operators/local_view.h
 * \brief Operator that runs a kernel on the shards of each device, in programs on DTensors.
 *
 * In a *local view* each device gives a kernel its shards of the arguments, and what the kernel
 * writes are its shards of the results. Example, x sharded "S[0]" over 4 devices:
 *
 *     lv: DTensor((8, 16), "S[0]") = R.dist.call_tir_local_view(scale_local, (x,), out_ty=..)
 *     scale_local: A (2, 16), B (2, 16)
 *
 * Nothing but its types says how it is sharded, and nothing is reduced behind it that is not
 * written there. TVM has the operator for R.call_tir and R.call_tir_with_grad; its sibling for
 * R.call_tir_inplace, R.dist.call_tir_inplace_local_view, is ours.
 */
#ifndef DISTIR_DIALECT_OPERATORS_LOCAL_VIEW_H_
#define DISTIR_DIALECT_OPERATORS_LOCAL_VIEW_H_

#include "ir/node.h"

namespace distir::dialect {

/*! \brief True if calls of an operator are kernels on the shards of one device. */
bool IsLocalView(const ir::Expr& op);
/*! \brief The operator of the local view of a kernel call: R.call_tir, with a gradient, or in
 * place.
 */
ir::Op LocalViewOf(const ir::Call& kernel_call);
/*! \brief The operator of the kernel call that each device makes in a local view. */
ir::Op KernelCallOf(const ir::Call& local_view);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_LOCAL_VIEW_H_
