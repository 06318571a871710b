/*!
 * \file rules/factor/per_channel.h
 * \brief The rule of data of any rank with tensors of one value per channel: normalisation by
 * channel, quantisation, prelu. All tensors share the channels; other dimensions are parallel, or
 * normalised together.
 */
#ifndef DISTIR_RULES_FACTOR_PER_CHANNEL_H_
#define DISTIR_RULES_FACTOR_PER_CHANNEL_H_

#include <vector>

#include "rules/factor/factor_rule.h"

namespace distir::rules {

/*!
 * \brief Operand 0 and result 0 are the data; every other tensor of rank 1 and as long as the
 * channels has one value per channel, the rest are scalars.
 * \param along Dimensions that are normalised together.
 * \param kind Of their factors: decomposed, or needing replication.
 * \param groups Channels that must stay together lie side by side, this many groups of them.
 */
FactorRule PerChannel(const OpView& view, int channel, const std::vector<bool>& along,
                      const FactorKind& kind, int64_t groups = 0);

}  // namespace distir::rules
#endif  // DISTIR_RULES_FACTOR_PER_CHANNEL_H_
