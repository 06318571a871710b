// The planner as a global function over the plain data of mesh/plain_data.h.
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <memory>

#include "mesh/plain_data.h"
#include "redistribute/planner.h"

namespace distir {
namespace redistribute {

namespace ffi = tvm::ffi;

namespace {

/*!
 * \brief A plan as [steps, seconds, bytes received], a step as [kind, resulting sharding, axes
 * reduced over].
 * \param dims Extents of the tensor, 0 for a symbolic one.
 */
ffi::Array<ffi::Any> PlanData(Planner* planner, mesh::Ints shape, mesh::Ints ids,
                              mesh::ShardingData source, mesh::ShardingData target, mesh::Ints dims,
                              double bytes) {
  const mesh::Mesh on = mesh::ToMesh(shape, ids);
  const Plan& plan =
      planner->Find(on, mesh::ToShardingOn(on, source), mesh::ToShardingOn(on, target),
                    TensorSize{mesh::ToVector(dims), bytes});
  ffi::Array<ffi::Any> steps;
  for (const PlanStep& step : plan.steps) {
    steps.push_back(ffi::Array<ffi::Any>{ffi::String(mesh::CollectiveName(step.kind)),
                                         mesh::FromSharding(step.result),
                                         mesh::FromAxes(step.reduce_axes)});
  }
  return {steps, plan.seconds, plan.received};
}

TVM_FFI_STATIC_INIT_BLOCK() {
  // A planner under a cluster, which remembers its plans: a function of one request.
  ffi::reflection::GlobalDef().def("distir.redistribute.Planner", [](ffi::Any cluster) {
    auto planner = std::make_shared<Planner>(cost::ToCluster(cluster));
    return ffi::Function::FromTyped([planner](mesh::Ints shape, mesh::Ints ids,
                                              mesh::ShardingData source, mesh::ShardingData target,
                                              mesh::Ints dims, double bytes) {
      return PlanData(planner.get(), shape, ids, source, target, dims, bytes);
    });
  });
}

}  // namespace

}  // namespace redistribute
}  // namespace distir
