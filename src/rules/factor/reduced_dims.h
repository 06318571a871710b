/*!
 * \file rules/factor/reduced_dims.h
 * \brief The rule of operators that reduce some dimensions of their operand.
 */
#ifndef DISTIR_RULES_FACTOR_REDUCED_DIMS_H_
#define DISTIR_RULES_FACTOR_REDUCED_DIMS_H_

#include <vector>

#include "rules/factor/factor_rule.h"

namespace distir::rules {

/*!
 * \brief Dimensions of the operand in `mask` vanish (or stay as 1 with keepdims); the others pass
 * through.
 * \param add Makes the factor of a dimension that vanishes: (builder, dimension, size) to factor.
 */
template <typename Add>
FactorRule ReduceDims(const OpView& view, const std::vector<bool>& mask, bool keepdims,
                      const Add& add) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  int result_dim = 0;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    if (mask[d]) {
      builder.Operand(0, d, add(&builder, d, sizes[d]));
      if (keepdims) ++result_dim;
    } else {
      int factor = builder.Parallel(sizes[d]);
      builder.Operand(0, d, factor);
      for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, result_dim, factor);
      ++result_dim;
    }
  }
  return builder.Finish();
}

}  // namespace distir::rules
#endif  // DISTIR_RULES_FACTOR_REDUCED_DIMS_H_
