/*!
 * \file ops/image_layout.h
 * \brief Adds the parallel factors of image operators to a rule: batch and channels.
 */
#ifndef DISTIR_OPS_IMAGE_LAYOUT_H_
#define DISTIR_OPS_IMAGE_LAYOUT_H_

#include <string>

#include "ops/family.h"
#include "rules/factor/layout.h"

namespace distir::ops {

/*! \brief Gives batch and channels a parallel factor each. Every operand is laid out as the first
 * one; N, C and blocks of C keep their letters. */
void AddBatchAndChannels(const OpView& view, const std::string& layout,
                         const std::string& out_layout, RuleBuilder* builder);

}  // namespace distir::ops
#endif  // DISTIR_OPS_IMAGE_LAYOUT_H_
