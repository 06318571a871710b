/*!
 * \file optimize/pairs/moved_sum.h
 * \brief A product that sums over values which an all-to-all has brought together sums them up
 * where they lay before.
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

namespace distir {
namespace optimize {

/*! \brief Rewrites such a product; leaves any other binding as it is. */
void SumBeforeMoving(EditableFunction* editable, SlotMasks* masks, EditableBinding* at);

}  // namespace optimize
}  // namespace distir
#endif  // DISTIR_OPTIMIZE_PAIRS_MOVED_SUM_H_
