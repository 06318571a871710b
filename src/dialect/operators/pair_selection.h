/*!
 * \file dialect/operators/pair_selection.h
 * \brief Operators on pairs of a token and an expert that a matrix of weights (T, E) selects.
 *
 * If all experts compute all tokens, and weights are zero for experts that were not chosen, only
 * the pairs whose weight is not zero matter:
 *
 *     g = R.dist.gather_rows(x, m, expert_axes=[0], choices=2)      # an all-gather of x
 *     t = R.dist.select_pairs(R.reshape(g, (T, 1, D)), m)           # rows by expert, and counts
 *     y = R.dist.grouped_matmul(t[0], w, t[1], transposed=False)
 *     z = R.dist.place_pairs(y, m)                                  # z[t] = sum of y over e
 *     s = R.dist.scatter_rows(z, m, expert_axes=[0], choices=2)     # a reduce-scatter of z
 *
 * m (T, E) has its experts sharded where those of w are. The pairs that count are known at run
 * time:
 *
 *  - t[0] has room for all pairs, (T E, D), sharded wherever m is. A device has the pairs of its
 *    experts in front, ordered by expert, then by token; behind them are zeros. x is (T, E, D), or
 *    has 1 in place of T or E: what is alike for all tokens, or all experts.
 *  - t[1] says how many: (1, experts of the device) int64 on each device.
 *  - z is partial over the axes of the experts, and zero for tokens that no pair has.
 *
 * Devices ask each other for the rows of x that their part of m has, and send those of z. Each is
 * sent once, however many experts of a device have it. `choices` is how many experts a token has,
 * for estimates; no result depends on it. On local tensors the two collectives name device groups,
 * in the order of the experts; the others are kernels of the runtime:
 *
 *     g = R.ccl.gather_rows(x, m, groups=[[0, 1]], choices=2)
 *     s = R.ccl.scatter_rows(z, m, groups=[[0, 1]], choices=2)
 */
#ifndef DISTIR_DIALECT_OPERATORS_PAIR_SELECTION_H_
#define DISTIR_DIALECT_OPERATORS_PAIR_SELECTION_H_

#include <vector>

#include "ir/node.h"

namespace distir::dialect {

/*! \brief x (T, E, D), T or E maybe 1, and weights (T, E), placed alike along both. */
ir::Call MakeSelectPairs(const ir::Expr& x, const ir::Expr& weights);
/*! \brief rows (T E, D) of the pairs of weights (T, E). */
ir::Call MakePlacePairs(const ir::Expr& rows, const ir::Expr& weights);
/*! \brief x (T, D), sharded along T as the tokens of weights (T, E) are, and along the expert axes
 * inside of these. */
ir::Call MakeGatherRows(const ir::Expr& x, const ir::Expr& weights,
                        const std::vector<int>& expert_axes, int64_t choices);
/*! \brief x (T, D), partial over the expert axes, sharded along T as weights (T, E) are. */
ir::Call MakeScatterRows(const ir::Expr& x, const ir::Expr& weights,
                         const std::vector<int>& expert_axes, int64_t choices);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_PAIR_SELECTION_H_
