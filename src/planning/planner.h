/*!
 * \file planning/planner.h
 * \brief Plans the cheapest sequence of collectives from one sharding to another on one mesh.
 *
 * Pure search: no IR. Nodes are shardings by *atoms*, the parts into which both sides cut the mesh
 * axes, cut further into primes where that gives at most kMaxAtoms of them. Edges are slice,
 * all-gather, all-to-all, reduce-scatter and all-reduce of any run of atoms, and an exchange (or
 * permute) to any sharding; their length is the time by cost/collective_cost.h and cost/exchange.h.
 * The search is A* under the bound that a device has to receive at least what it lacks of its
 * target block, over the best link. Among plans of equal time, the one with fewer and simpler steps
 * wins.
 *
 * A value that is still partial is not permuted or exchanged.
 *
 * Worked example, mesh (2, 4) axes x, y, a large tensor: [x|y] to [y|x] is one exchange, in which
 * the worst-off device receives its whole block: 1/8 of the tensor. For a tensor of a few bytes the
 * number of messages counts, and all-gathers may be the faster way.
 *
 * Bound: where the mesh is cut into more than kMaxAtoms atoms, only collectives that bring the
 * target nearer are tried, and the plan is never slower than one exchange (after a reduction, if
 * partial), which moves the minimum of bytes: it exceeds the optimum by at most its messages'
 * latency.
 */
#ifndef DISTIR_PLANNING_PLANNER_H_
#define DISTIR_PLANNING_PLANNER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "mesh/collective.h"
#include "mesh/sharding.h"

namespace distir::planning {

/*! \brief Atoms up to which all shardings are searched: those of a mesh (2, 2, 2, 2). */
constexpr int kMaxAtoms = 4;

struct PlanStep {
  mesh::CollectiveKind kind;
  mesh::Sharding result;       // where the step leads; `partial` holds what is still to be reduced
  mesh::AxisList reduce_axes;  // of a reduction
};

struct Plan {
  std::vector<PlanStep> steps;
  double seconds = 0;   // by the cost model
  double received = 0;  // bytes that a device receives or sends at most, summed over steps
};

/*! \brief The tensor that a plan moves. */
struct TensorSize {
  /*! \brief Per dimension, what the number of shards has to divide in every step; 0: a symbolic
   * dimension, which only divides into what both sides divide it into. */
  std::vector<int64_t> dims;
  double bytes = 0;  // in all
};

/*! \brief The size of a tensor that is moved: dimensions that shards do not divide are padded
 * first.
 */
TensorSize PaddedFor(TensorSize size, const mesh::Sharding& source, const mesh::Sharding& target);

struct PlanStore;

/*! \brief Plans, each made once in a thread for all meshes whose devices are joined alike, as those
 * of the stages of a pipeline often are. */
class Planner {
 public:
  explicit Planner(cost::Cluster cluster);
  ~Planner();

  /*!
   * \brief Leads from `source` (which may be partial) to `target` (which is not).
   * \throws ValueError when the ranks differ or the target is partial; names both shardings.
   */
  const Plan& Find(const mesh::Mesh& mesh, const mesh::Sharding& source,
                   const mesh::Sharding& target, const TensorSize& size);

  const cost::Cluster& cluster() const { return *cluster_; }

 private:
  /*! \brief A number for the mesh's shape and how its devices are joined. */
  int64_t KindOf(const mesh::Mesh& mesh);

  const std::shared_ptr<const cost::Cluster> cluster_;
  const std::shared_ptr<PlanStore> store_;
  std::map<std::vector<int64_t>, int64_t> kinds_;  // by shape and devices
};

}  // namespace distir::planning
#endif  // DISTIR_PLANNING_PLANNER_H_
