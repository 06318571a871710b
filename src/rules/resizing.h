/*!
 * \file rules/resizing.h
 * \brief Which pixels of an image each pixel of a resized one is made of, along one dimension.
 *
 * Of n pixels g p become g q, with p and q coprime: every p of them become q, at the same places
 * between them. A group of p looks at `reach` pixels beyond its ends, at the border at the last
 * pixel instead. Worked example, 8 to 12, linear: groups of 2 become 3, pixel 3 of the result lies
 * at 1.83, so that it looks at pixel 1, of another group.
 */
#ifndef DISTIR_RULES_RESIZING_H_
#define DISTIR_RULES_RESIZING_H_

#include <vector>

#include "rules/factor_rule.h"

namespace distir {
namespace rules {

/*! \brief One spatial dimension that shards may resize alone. */
struct ResizedDim {
  int dim;
  int spatial;  // which of the sizes that the call states is its own
  int64_t groups;
  int64_t group, result_group;  // pixels
  int64_t reach;
};

/*! \brief These dimensions of a call; those whose places follow from the whole size are left out.
 */
std::vector<ResizedDim> ResizedDims(const OpView& view);

/*! \brief Gives each of them a factor: parallel where no pixel looks into another group. */
void AddResizingFactors(const OpView& view, RuleBuilder* builder);

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_RESIZING_H_
