/*!
 * \file optimize/pairs/moved_sum.h
 * \brief Products that sum over what was brought together for them are summed up where it lies.
 *
 *     a = R.dist.all_to_all(y, ..)  # experts to tokens      b = R.dist.all_to_all(m, ..)
 *     z = R.einsum((a, m), "etd,te->td")                ->   p = R.einsum((y, b), "etd,te->td")
 *                                                            z = R.dist.reduce_scatter(p, ..)
 *
 * The mask m is smaller than y, and the sum is one of experts (weighted_sum.h) then.
 */
#ifndef DISTIR_OPTIMIZE_PAIRS_MOVED_SUM_H_
#define DISTIR_OPTIMIZE_PAIRS_MOVED_SUM_H_

#include "optimize/program/editable_function.h"
#include "optimize/program/slot_mask.h"

namespace distir {
namespace optimize {

/*! \brief Writes such a product so; leaves what is none as it is. */
void SumBeforeMoving(EditableFunction* editable, SlotMasks* masks, EditableBinding* at);

}  // namespace optimize
}  // namespace distir
#endif  // DISTIR_OPTIMIZE_PAIRS_MOVED_SUM_H_
