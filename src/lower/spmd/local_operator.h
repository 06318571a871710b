/*!
 * \file lower/spmd/local_operator.h
 * \brief Lowers operator calls on DTensors to calls on the tensors of one worker.
 *
 * The record of an operator says what its worker's call has different: a shape argument, attributes
 * or arguments that state global sizes. Worked example on 4 devices:
 *
 *     R.reshape(x, R.shape([8, 4]))     # x: (32,) "S[0]", the result (8, 4) "S[0]"
 *  -> R.reshape(x, R.shape([2, 4]))     # x: (8,)
 */
#ifndef DISTIR_LOWER_SPMD_LOCAL_OPERATOR_H_
#define DISTIR_LOWER_SPMD_LOCAL_OPERATOR_H_

#include "dialect/mesh_table.h"
#include "dialect/operators/kv_cache.h"
#include "ir/node.h"
#include "lower/local/local_types.h"

namespace distir::lower {

/*!
 * \brief A call of an operator, or of the kernel of a local view.
 * \param result_ty Of the variable that it is bound to.
 * \param args Its arguments on the worker.
 */
ir::Expr LocalOperatorCall(const ir::Call& call, const ir::Type& result_ty,
                           ffi::Array<ir::Expr> args, LocalTypes* types);

/*! \brief A call of a KV cache: the shape of a cache, and of a view of it, is divided as its
 * tensors are. */
ir::Expr LocalCacheCall(const ir::Call& call, dialect::CacheCallKind kind,
                        const ir::Type& result_ty, ffi::Array<ir::Expr> args, LocalTypes* types,
                        dialect::MeshTable* meshes);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_SPMD_LOCAL_OPERATOR_H_
