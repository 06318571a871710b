/*!
 * \file redistribute/planner.h
 * \brief A sequence of collectives from one sharding to another on one mesh.
 *
 * Pure search over shardings: no IR. Steps are made from whole atoms, the parts into which the
 * references of both sides cut the mesh axes.
 *
 * Worked example, mesh (2, 4) axes x, y: [x|y] to [y|x] is all-gather x on dimension 0 ([-|y]),
 * all-to-all y from dimension 1 to 0 ([y|-]), slice x on dimension 1 ([y|x]).
 */
#ifndef DISTIR_REDISTRIBUTE_PLANNER_H_
#define DISTIR_REDISTRIBUTE_PLANNER_H_

#include <vector>

#include "mesh/collective.h"
#include "mesh/sharding.h"

namespace distir {
namespace redistribute {

struct PlanStep {
  mesh::CollectiveKind kind;
  mesh::Sharding result;       // where the step leads; `partial` holds what is still to be reduced
  mesh::AxisList reduce_axes;  // of a reduction
};

/*!
 * \brief Leads from `source` (which may be partial) to `target` (which is not). Always ends at the
 * target: every step either adds an atom that the target has at that place or removes one that it
 * has not.
 * \throws ValueError when the ranks differ; names both shardings.
 */
std::vector<PlanStep> Plan(const mesh::Mesh& mesh, const mesh::Sharding& source,
                           const mesh::Sharding& target);

}  // namespace redistribute
}  // namespace distir
#endif  // DISTIR_REDISTRIBUTE_PLANNER_H_
