/*!
 * \file rules/call/projection.h
 * \brief Projects shardings of tensors to a rule's factors, and back.
 *
 * Project: reads off, for every factor, the axes that a tensor's dimensions put on it. Compose: the
 * inverse. A minor factor of a dimension can only be sharded when all factors before it in that
 * dimension are fully sharded, else its shards would not be contiguous blocks.
 */
#ifndef DISTIR_RULES_CALL_PROJECTION_H_
#define DISTIR_RULES_CALL_PROJECTION_H_

#include <vector>

#include "mesh/sharding.h"
#include "rules/factor/factor_rule.h"

namespace distir::rules {

using FactorShardings = std::vector<mesh::AxisList>;  // one list per factor

/*! \brief The longest prefix of `axes`, cutting one reference if needed, whose shards divide `size`
 * (-1: any). */
mesh::AxisList FittingPrefix(const mesh::AxisList& axes, int64_t size);
/*! \brief FittingPrefix of a factor: an uneven one takes axes as long as it has an element for
 * each shard. One that is grained takes either all of them or those that divide it: what is left
 * may be for the elements of a grain. */
mesh::AxisList FittingPrefix(const mesh::AxisList& axes, const Factor& factor);

/*! \brief Adds to `out` what the dimensions of one tensor say about each of its factors; what does
 * not fit is left out. */
void Project(const FactorRule& rule, const TensorFactors& tensor, const mesh::Sharding& sharding,
             FactorShardings* out);

enum class Side { kOperand, kResult };

/*! \brief The sharding of a tensor on a side of a call whose factors are sharded so. */
mesh::Sharding Compose(const FactorRule& rule, Side side, const TensorFactors& tensor,
                       const FactorShardings& factors);

/*! \brief Clears factors whose shards would not be contiguous blocks in some tensor of the rule. */
void DropUnnestable(const FactorRule& rule, FactorShardings* factors);

/*! \brief Elements of a tensor, symbolic dimensions counted as kAssumedSymbolicSize. */
double NumElements(const Sizes& sizes);

}  // namespace distir::rules
#endif  // DISTIR_RULES_CALL_PROJECTION_H_
