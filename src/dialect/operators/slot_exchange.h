/*!
 * \file dialect/operators/slot_exchange.h
 * \brief Products with a mask whose nonzero elements assign tokens to slots.
 *
 *     s: DTensor = R.dist.dispatch_slots(x, mask, expert_axes=[0], choices=2)  # mask.T @ x
 *     z: DTensor = R.dist.combine_slots(y, mask, expert_axes=[0], choices=2)   # mask @ y
 *
 * for x (T, D), mask (T, S) and y (S, D), where tokens and slots lie along the expert axes, slots
 * along no other, and the mask is nearly all zeros (Lepikhin et al., arXiv:2006.16668). A device
 * sends the rows of slots that its tokens are in, and gets those that its tokens ask for; which
 * these are is known at run time only. A value at a zero of the mask counts as nothing, so a value
 * that is not finite stays in its slot.
 *
 * Tokens may lie along further axes; over these, what is dispatched is partial. `choices` is how
 * many slots a token is in, for estimates; no result depends on it. On local tensors the operators
 * name device groups, in the order of the slots:
 *
 *     s = R.ccl.dispatch_slots(x, mask, groups=[[0, 1]], choices=2)
 *     z = R.ccl.combine_slots(y, mask, groups=[[0, 1]], choices=2)
 */
#ifndef DISTIR_DIALECT_OPERATORS_SLOT_EXCHANGE_H_
#define DISTIR_DIALECT_OPERATORS_SLOT_EXCHANGE_H_

#include <vector>

#include "ir/node.h"

namespace distir::dialect {

/*! \brief x (T, D) and mask (T, S), placed alike along T. */
ir::Call MakeDispatchSlots(const ir::Expr& x, const ir::Expr& mask,
                           const std::vector<int>& expert_axes, int64_t choices);
/*! \brief y (S, D), placed along S as the expert axes say, and mask (T, S). */
ir::Call MakeCombineSlots(const ir::Expr& y, const ir::Expr& mask,
                          const std::vector<int>& expert_axes, int64_t choices);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_SLOT_EXCHANGE_H_
