/*!
 * \file optimize/pairs/moved_sum.h
 * \brief Sums a product over values before an all-to-all moves them instead of after it.
 *
 *     a = R.dist.all_to_all(y, ..)  # experts to tokens      b = R.dist.all_to_all(m, ..)
 *     z = R.einsum((a, m), "etd,te->td")                ->   p = R.einsum((y, b), "etd,te->td")
 *                                                            z = R.dist.reduce_scatter(p, ..)
 *
 * The mask m is smaller than y, so moving it sends less. The new sum is one over experts that
 * weighted_sum.h reads.
 */
#ifndef DISTIR_OPTIMIZE_PAIRS_MOVED_SUM_H_
#define DISTIR_OPTIMIZE_PAIRS_MOVED_SUM_H_

#include "optimize/program/editable_function.h"
#include "optimize/program/slot_mask.h"

namespace distir::optimize {

/*! \brief Rewrites such a product; leaves any other binding as it is. */
void SumBeforeMoving(EditableFunction* editable, SlotMasks* masks, EditableBinding* at);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PAIRS_MOVED_SUM_H_
