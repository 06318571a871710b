/*!
 * \file rules/factor/decomposed_factor.h
 * \brief Makes factors of dimensions whose shards a decomposition or a segment exchange handles.
 */
#ifndef DISTIR_RULES_FACTOR_DECOMPOSED_FACTOR_H_
#define DISTIR_RULES_FACTOR_DECOMPOSED_FACTOR_H_

#include <algorithm>
#include <limits>
#include <optional>

#include "rules/call/projection.h"

namespace distir::rules {

/*! \brief True if sums of elements with zeros are these elements. */
inline bool IsNumber(const ir::TensorType& type) {
  const DLDataType dtype = type.has_dtype() ? type.dtype() : DLDataType{kDLBool, 8, 1};
  return dtype.code == kDLFloat || dtype.code == kDLBfloat || dtype.code == kDLInt ||
         (dtype.code == kDLUInt && dtype.bits > 1);
}

/*! \brief A new factor for dimension `dim` of a tensor: decomposed where a position tells its shard
 * and shards can be combined, that is where the size is known and elements are numbers; else it
 * needs replication. */
inline int DecomposedIfKnown(const ir::TensorType& type, int dim, RuleBuilder* builder) {
  int64_t size = StaticSizes(type)[dim];
  return IsNumber(type) && size >= 0 ? builder->Decomposed(size) : builder->NeedsReplication(size);
}

/*! \brief A new factor for dimension `dim` of all tensors, whose elements a segment exchange moves:
 * they are shared out alike, each tensor's own extent as evenly as can be. Its size is the largest
 * extent; tensors with fewer elements than shards are replicated. No factor where an extent is
 * unknown. `is_blocked` is the factor's. The operator is decomposed where it is uneven
 * (rules/tails.h).
 * \param elements The most that a shard of the results gets from others; not more than it has. */
inline std::optional<int> MovedAlong(const OpView& view, int dim, bool is_blocked,
                                     RuleBuilder* builder,
                                     double elements = std::numeric_limits<double>::infinity()) {
  int64_t size = 0, of_results = 0;
  for (const auto* tensors : {&view.operands, &view.results}) {
    for (const ir::TensorType& type : *tensors) {
      const int64_t extent = StaticSizes(type)[dim];
      if (extent <= 0) return std::nullopt;
      size = std::max(size, extent);
      if (tensors == &view.results) of_results += extent;
    }
  }
  if (size <= 1) return std::nullopt;
  const double part = std::min(1.0, elements / static_cast<double>(of_results));
  const int factor = builder->Add({size, DecomposedFactor{Exchanged::kMoved, part, is_blocked}});
  for (size_t i = 0; i < view.operands.size(); ++i)
    builder->Operand(i, dim, factor, StaticSizes(view.operands[i])[dim]);
  for (size_t r = 0; r < view.results.size(); ++r)
    builder->Result(r, dim, factor, StaticSizes(view.results[r])[dim]);
  return factor;
}

/*! \brief The rule with all decomposed factors that results have too marked as those of a
 * normalisation: in place of these dimensions shards reduce two numbers, such as a maximum and a
 * sum, or a mean and a variance. */
inline FactorRule WithStatistics(FactorRule rule) {
  constexpr double kNumbers = 2;
  auto is_normed = [&rule](size_t f) {
    return rule.factors[f].Is<DecomposedFactor>() && !rule.IsCombined(f);
  };
  Sizes sizes;
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (is_normed(f)) sizes.push_back(rule.factors[f].size);
  }
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (!is_normed(f)) continue;
    rule.factors[f].kind =
        DecomposedFactor{Exchanged::kStatistics, std::min(1.0, kNumbers / NumElements(sizes))};
  }
  return rule;
}

}  // namespace distir::rules
#endif  // DISTIR_RULES_FACTOR_DECOMPOSED_FACTOR_H_
