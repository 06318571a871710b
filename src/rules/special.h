/*!
 * \file rules/special.h
 * \brief The factor of a dimension whose shards a special algorithm has to tell apart.
 */
#ifndef DISTIR_RULES_SPECIAL_H_
#define DISTIR_RULES_SPECIAL_H_

#include <numeric>
#include <optional>

#include "rules/factor_rule.h"

namespace distir {
namespace rules {

/*! \brief A new factor for dimension `dim` of a tensor: special where a position tells its shard
 * and shards can be combined, that is where the size is known and elements are numbers; else needed
 * whole. */
inline int SpecialIfKnown(const ir::TensorType& type, int dim, RuleBuilder* builder) {
  int64_t size = StaticSizes(type)[dim];
  DLDataType dtype = type.dtype().defined() ? type.dtype().dtype() : DLDataType{kDLBool, 8, 1};
  bool is_number = dtype.code == kDLFloat || dtype.code == kDLBfloat || dtype.code == kDLInt ||
                   (dtype.code == kDLUInt && dtype.bits > 1);
  return is_number && size >= 0 ? builder->Special(size) : builder->Replicate(size);
}

/*! \brief A new factor for dimension `dim` of all tensors, whose elements a segment exchange moves:
 * they are shared out alike, each tensor's own extent evenly. No factor where a size is unknown or
 * none divides all. `stays` is the factor's. */
inline std::optional<int> MovedAlong(const OpView& view, int dim, bool stays,
                                     RuleBuilder* builder) {
  int64_t size = 0;
  for (const auto* tensors : {&view.operands, &view.results}) {
    for (const ir::TensorType& type : *tensors) {
      const int64_t extent = StaticSizes(type)[dim];
      if (extent <= 0) return std::nullopt;
      size = std::gcd(size, extent);
    }
  }
  if (size <= 1) return std::nullopt;
  Factor moved = {size, FactorKind::kSpecial};
  moved.stays = stays;
  const int factor = builder->Add(moved);
  for (size_t i = 0; i < view.operands.size(); ++i) builder->Operand(i, dim, factor);
  for (size_t r = 0; r < view.results.size(); ++r) builder->Result(r, dim, factor);
  return factor;
}

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_SPECIAL_H_
