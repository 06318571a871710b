// The planner of redistributions and the cost model, over the plain data of plain_shardings.h.
#include <algorithm>
#include <memory>

#include "arguments.h"
#include "cost/cluster.h"
#include "cost/collective_cost.h"
#include "cost/exchange.h"
#include "planning/planner.h"

namespace distir::test {

namespace {

using mesh::Ints;
using planning::Planner;

mesh::CollectiveKind KindOf(const std::string& name) {
  return *std::find_if(std::begin(mesh::kAllCollectiveKinds), std::end(mesh::kAllCollectiveKinds),
                       [&name](mesh::CollectiveKind kind) { return name == CollectiveName(kind); });
}

/*!
 * \brief A plan as [steps, seconds, bytes received], a step as [kind, resulting sharding, axes
 * reduced over].
 * \param dims Extents of the tensor, 0 for a symbolic one.
 */
ffi::Array<Any> PlanData(Planner* planner, Ints shape, Ints ids, ShardingData source,
                         ShardingData target, Ints dims, double bytes) {
  const mesh::Mesh on = mesh::ToMesh(shape, ids);
  const planning::Plan& plan = planner->Find(on, ToShardingOn(on, source), ToShardingOn(on, target),
                                             planning::TensorSize{mesh::ToVector(dims), bytes});
  const ffi::Array<Any> steps = ArrayOf(plan.steps, [](const planning::PlanStep& step) {
    return ffi::Array<Any>{ffi::String(mesh::CollectiveName(step.kind)), FromSharding(step.result),
                           FromAxes(step.reduce_axes)};
  });
  return {steps, plan.seconds, plan.received};
}

const bool kRedistribution = Register({
    {"Planner",  // under a cluster, remembers its plans: a function of one request
     [](Arguments& in) -> Any {
       auto planner = std::make_shared<Planner>(cost::ToCluster(in.NextAny()));
       return ffi::Function::FromTyped([planner](Ints shape, Ints ids, ShardingData source,
                                                 ShardingData target, Ints dims, double bytes) {
         return PlanData(planner.get(), shape, ids, source, target, dims, bytes);
       });
     }},
    {"CollectiveSeconds",  // of a kind on a cluster, in several groups at once, by local bytes
     [](Arguments& in) -> Any {
       const cost::Cluster cluster = cost::ToCluster(in.NextAny());
       const mesh::CollectiveKind kind = KindOf(in.Next<ffi::String>());
       const auto groups = in.Next<ffi::Array<Ints>>();
       const auto local_bytes = in.Next<double>();
       double seconds = 0;
       for (const Ints& group : groups) {
         const cost::Link& link = cluster.links()[cluster.Slowest(mesh::ToVector(group))];
         seconds =
             std::max(seconds, cost::Seconds(kind, cluster.launch(), link,
                                             static_cast<int64_t>(group.size()), local_bytes));
       }
       return seconds;
     }},
    {"ExchangeCost",  // seconds, bytes received, messages, bytes sent
     [](Arguments& in) -> Any {
       const cost::Cluster cluster = cost::ToCluster(in.NextAny());
       const mesh::Mesh from = in.Mesh();
       const mesh::Sharding source = in.ShardingOn(from);
       const mesh::Mesh to = in.Mesh();
       const mesh::Sharding target = in.ShardingOn(to);
       const cost::ExchangeCost cost = cost::CostOfExchange(
           cluster, cost::Layout(from, source), cost::Layout(to, target), in.Next<double>());
       return ffi::Array<Any>{cost.seconds, cost.received, cost.messages, cost.sent};
     }},
});

}  // namespace

}  // namespace distir::test
