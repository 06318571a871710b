/*!
 * \file dialect/operators/token_dispatch.h
 * \brief Operators that send rows to the device of their expert, multiply them there, and return
 * them.
 *
 *     t: Tuple(DTensor, DTensor) = R.dist.dispatch_tokens(x, ids, num_experts=8, expert_axes=[0])
 *     y: DTensor = R.dist.grouped_matmul(t[0], w, t[1], transposed=False)
 *     z: DTensor = R.dist.combine_tokens(y, ids, t[1], expert_axes=[0])
 *
 * gives z[i] = x[i] @ w[ids[i]] for x (N, D), ids (N,) and w (8, D, F), where the experts of w lie
 * along the expert axes and the rows of x along these and maybe others. The number of rows for each
 * device is known at run time only:
 *
 *  - t[0] has room for all rows of all n devices along the expert axes, (n N, D), placed as x. A
 *    device has the rows of its experts in front, ordered by expert, then by where they come from;
 *    behind them are zeros.
 *  - t[1] says how many: (n, 8 / n) int64 on each device, by where they come from and expert.
 *
 * An id outside of the experts means the nearest one. On local tensors the two collectives name
 * device groups, in the order of the experts; the product is the runtime's:
 *
 *     t = R.ccl.dispatch_tokens(x, ids, groups=[[0, 1]], num_experts=8)
 *     z = R.ccl.combine_tokens(y, ids, t[1], groups=[[0, 1]])
 *
 * If all devices along the expert axes have the same rows, nothing is sent. Each takes the rows
 * of its experts, and what comes of them is partial over the expert axes, zeros for other rows:
 *
 *     t = R.dist.select_tokens(x, ids, first, num_experts=8, expert_axes=[0])
 *     y = R.dist.grouped_matmul(t[0], w, t[1], transposed=False)
 *     z = R.dist.place_tokens(y, ids, t[1], first, expert_axes=[0])
 *
 * first (n,), int64, sharded along the expert axes, is the first expert of each device. t is as
 * above, but that t[0] is sharded along the expert axes where x is not. On local tensors all but
 * the two collectives are kernels of the runtime.
 */
#ifndef DISTIR_DIALECT_OPERATORS_TOKEN_DISPATCH_H_
#define DISTIR_DIALECT_OPERATORS_TOKEN_DISPATCH_H_

#include <vector>

#include "ir/node.h"

namespace distir::dialect {

namespace ffi = tvm::ffi;

/*! \brief True if this is `relax.dist.dispatch_tokens`, `relax.dist.combine_tokens`, or a
 * collective of slots (slot_exchange.h) or of pairs (pair_selection.h). */
bool MovesTokens(const ir::Expr& op);
/*! \brief True for the `relax.ccl` forms of these. */
bool MovesLocalTokens(const ir::Expr& op);
/*! \brief True if this is a kernel among these: `relax.dist.grouped_matmul`, `select_tokens`,
 * `place_tokens`, or one of pairs (pair_selection.h). */
bool IsTokenKernel(const ir::Expr& op);
/*! \brief True if this is one of these on DTensors, whose types state all placements. */
bool IsOfTokens(const ir::Expr& op);

/*! \brief x (N, D) and ids (N,), placed alike along N; expert_axes are axes of their mesh. */
ir::Call MakeDispatchTokens(const ir::Expr& x, const ir::Expr& ids, int64_t num_experts,
                            const std::vector<int>& expert_axes);
/*! \brief rows (M, D) by experts (E, D, F), or (E, F, D) if they are transposed. If both are
 * sharded along D, the result is partial over these axes. \param room How many times as many rows
 * as are expected there is room for; for estimates, no result depends on it. */
ir::Call MakeGroupedMatmul(const ir::Expr& rows, const ir::Expr& experts, const ir::Expr& counts,
                           bool transposed, DLDataType dtype, double room);
/*! \brief The rows back where they came from. */
ir::Call MakeCombineTokens(const ir::Expr& y, const ir::Expr& ids, const ir::Expr& counts,
                           const std::vector<int>& expert_axes);
/*! \brief x (N, D) and ids (N,), placed alike along N, along none of the expert axes. */
ir::Call MakeSelectTokens(const ir::Expr& x, const ir::Expr& ids, const ir::Expr& first,
                          int64_t num_experts, const std::vector<int>& expert_axes);
/*! \brief The rows in their places; partial over the expert axes. */
ir::Call MakePlaceTokens(const ir::Expr& y, const ir::Expr& ids, const ir::Expr& counts,
                         const ir::Expr& first, const std::vector<int>& expert_axes);

/*! \brief The axes of the mesh along which the experts lie. */
std::vector<int> ExpertAxes(const ir::Call& call);
/*! \brief Makes the local collective of a worker. \param type Of its value there. */
ir::Call MakeLocalTokenCall(const ir::Call& call, const ir::Type& type,
                            const ir::NodeArray<ir::Expr>& args,
                            const ffi::Array<ffi::Array<int64_t>>& groups);
/*! \brief A kernel on a worker, a call of the runtime. */
ir::Call MakeLocalTokenKernel(const ir::Call& call, const ir::Type& type,
                              const ir::NodeArray<ir::Expr>& args);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_TOKEN_DISPATCH_H_
