/*!
 * \file propagation/separated_rule.h
 * \brief Compares the factor rule of a call with that of the call on separate dimensions.
 *
 * Worked example: a softmax of (32, 16) along dimension 1 has a parallel factor for dimension 0.
 * The rule of the softmax of (4, 8, 16) along dimension 2 is the same if dimensions 0 and 1 have a
 * parallel factor each.
 */
#ifndef DISTIR_PROPAGATION_SEPARATED_RULE_H_
#define DISTIR_PROPAGATION_SEPARATED_RULE_H_

#include <vector>

#include "propagation/separated_call.h"
#include "rules/factor/factor_rule.h"

namespace distir::propagation {

/*! \brief The dimensions of each factor of a call that are merged in it. */
using Parts = std::vector<const Dims*>;

/*! \brief The elements of a list in an order; as they are if that is empty. */
template <typename List>
List InOrderOf(const std::vector<int64_t>& order, const List& all) {
  if (order.size() != all.size()) return all;
  List ordered;
  for (int64_t i : order) ordered.push_back(all[i]);
  return ordered;
}

/*!
 * \brief True if two rules are the same but for merged dimensions, which are separate in the
 * second.
 * \param first_order As SeparatedCall has it.
 */
bool IsSameApart(const rules::FactorRule& merged, const rules::FactorRule& apart,
                 const Parts& parts, const std::vector<int64_t>& first_order);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_SEPARATED_RULE_H_
