// The planner as a global function over the plain data of mesh/plain_data.h.
#include <tvm/ffi/reflection/registry.h>

#include "mesh/plain_data.h"
#include "redistribute/planner.h"

namespace distir {
namespace redistribute {

namespace ffi = tvm::ffi;

namespace {

/*! \brief Steps as [kind, resulting sharding, axes reduced over]. */
ffi::Array<ffi::Any> PlanData(mesh::Ints shape, mesh::Ints ids, mesh::ShardingData source,
                              mesh::ShardingData target) {
  const mesh::Mesh on = mesh::ToMesh(shape, ids);
  ffi::Array<ffi::Any> steps;
  for (const PlanStep& step :
       Plan(on, mesh::ToShardingOn(on, source), mesh::ToShardingOn(on, target))) {
    steps.push_back(ffi::Array<ffi::Any>{ffi::String(mesh::CollectiveName(step.kind)),
                                         mesh::FromSharding(step.result),
                                         mesh::FromAxes(step.reduce_axes)});
  }
  return steps;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def("distir.redistribute.Plan", PlanData);
}

}  // namespace

}  // namespace redistribute
}  // namespace distir
