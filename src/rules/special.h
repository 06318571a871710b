/*!
 * \file rules/special.h
 * \brief The factor of a dimension whose shards a special algorithm has to tell apart.
 */
#ifndef DISTIR_RULES_SPECIAL_H_
#define DISTIR_RULES_SPECIAL_H_

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

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_SPECIAL_H_
