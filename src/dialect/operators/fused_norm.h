/*!
 * \file dialect/operators/fused_norm.h
 * \brief Operator for an all-reduce followed by a residual sum and an RMS norm.
 *
 *     t: Tuple(DTensor, DTensor) = R.dist.all_reduce_add_rms_norm(x, residual, weight, "mesh[0]",
 *         "R", reduce_axes=[0], reduction="sum", epsilon=1e-5)
 *
 * gives (s, n) with s = residual + the sum of x over the axes and n = rms_norm(s, weight) over the
 * last dimension, which is unsharded. x is partial over the axes, residual is not; both have the
 * target's placement. On local tensors the operator names device groups:
 *
 *     t: Tuple(Tensor, Tensor) = R.ccl.all_reduce_add_rms_norm(x, residual, weight,
 *         groups=[[0, 1]], epsilon=1e-5)
 */
#ifndef DISTIR_DIALECT_OPERATORS_FUSED_NORM_H_
#define DISTIR_DIALECT_OPERATORS_FUSED_NORM_H_

#include <vector>

#include "ir/node.h"

namespace distir::dialect {

namespace ffi = tvm::ffi;

/*! \brief True if this is `relax.dist.all_reduce_add_rms_norm`. */
bool IsFusedNorm(const ir::Expr& op);
/*! \brief True if this is `relax.ccl.all_reduce_add_rms_norm`. */
bool IsLocalFusedNorm(const ir::Expr& op);
/*! \brief True if tensors of this type can be normed so: float32, float16 or bfloat16. */
bool HasFusedNorm(const ir::TensorType& type);

/*! \brief The call on DTensors; reduce_axes are axes of target's device mesh. */
ir::Call MakeFusedNorm(const ir::Expr& x, const ir::Expr& residual, const ir::Expr& weight,
                       const ir::DTensorType& target, const std::vector<int>& reduce_axes,
                       double epsilon);
/*! \brief The call on local tensors of one type. */
ir::Call MakeLocalFusedNorm(const ir::NodeArray<ir::Expr>& args, const ir::Type& type,
                            const ffi::Array<ffi::Array<int64_t>>& groups, double epsilon);
double EpsilonOf(const ir::Call& call);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_FUSED_NORM_H_
