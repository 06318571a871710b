// The cost model as global functions over the plain data of mesh/plain_data.h.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <string>

#include "cost/cluster.h"
#include "cost/collective_cost.h"
#include "cost/exchange.h"
#include "mesh/plain_data.h"

namespace distir {
namespace cost {

namespace ffi = tvm::ffi;

namespace {

mesh::CollectiveKind KindOf(const ffi::String& name) {
  for (mesh::CollectiveKind kind : mesh::kAllCollectiveKinds) {
    if (name == mesh::CollectiveName(kind)) return kind;
  }
  TVM_FFI_THROW(ValueError) << "unknown collective " << static_cast<std::string>(name);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("distir.cost.BytesSent",
           [](ffi::String kind, int64_t group_size, double local_bytes) {
             return BytesSent(KindOf(kind), group_size, local_bytes);
           })
      .def("distir.cost.Seconds",
           [](ffi::Any cluster, ffi::String kind, ffi::Array<mesh::Ints> groups,
              double local_bytes) {
             const Cluster known = ToCluster(cluster);
             double seconds = 0;
             for (const mesh::Ints& group : groups) {
               seconds =
                   std::max(seconds, Seconds(KindOf(kind), known.launch(),
                                             known.links()[known.Slowest(mesh::ToVector(group))],
                                             static_cast<int64_t>(group.size()), local_bytes));
             }
             return seconds;
           })
      .def("distir.cost.Exchange",  // seconds, bytes received, messages
           [](ffi::Any cluster, mesh::Ints source_shape, mesh::Ints source_ids,
              mesh::ShardingData source, mesh::Ints target_shape, mesh::Ints target_ids,
              mesh::ShardingData target, double bytes) {
             const mesh::Mesh from = mesh::ToMesh(source_shape, source_ids);
             const mesh::Mesh to = mesh::ToMesh(target_shape, target_ids);
             ExchangeCost cost =
                 CostOfExchange(ToCluster(cluster), Layout(from, mesh::ToShardingOn(from, source)),
                                Layout(to, mesh::ToShardingOn(to, target)), bytes);
             return ffi::Array<ffi::Any>{cost.seconds, cost.received, cost.messages};
           });
}

}  // namespace cost
}  // namespace distir
