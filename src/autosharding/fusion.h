/*!
 * \file autosharding/fusion.h
 * \brief Groups calls that TVM would fuse to one kernel, if nothing were redistributed.
 *
 * As relax.transform.FuseOps does: a call joins the call that all uses of its result lead to, its
 * post-dominator, if the patterns of all calls on the way allow it. Elementwise and broadcasting
 * calls go with what follows them, but for products; a product takes elementwise calls behind it;
 * then injective calls (a transpose) follow each other. What the function returns is written.
 *
 * A call may take several kernels, one after the other: the first may join what comes before it,
 * the last what follows.
 *
 * Worked example: y = x * sigmoid(x), z = y w. The sigmoid and the product by x are one kernel; the
 * matrix product is another.
 */
#ifndef DISTIR_AUTOSHARDING_FUSION_H_
#define DISTIR_AUTOSHARDING_FUSION_H_

#include <vector>

#include "propagation/graph.h"

namespace distir::autosharding {

/*! \brief TVM's op patterns (TOpPattern). */
constexpr int kElementwise = 0, kBroadcast = 1, kInjective = 2, kReduction = 3, kEpilogue = 4,
              kOpaque = 8;
/*! \brief In place of a pattern: a call that nothing depends on. */
constexpr int kLeftOut = -1;

/*! \brief By node of a graph, one for each of its kernels. */
using OfKernels = std::vector<std::vector<int>>;

/*!
 * \param patterns At least one per node.
 * \return The groups, by a number.
 */
OfKernels FusedGroups(const propagation::FunctionGraph& graph, const OfKernels& patterns);

}  // namespace distir::autosharding
#endif  // DISTIR_AUTOSHARDING_FUSION_H_
