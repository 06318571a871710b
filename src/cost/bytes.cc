#include "cost/bytes.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <string>

namespace distir {
namespace cost {

namespace ffi = tvm::ffi;

double BytesSent(mesh::CollectiveKind kind, int64_t group_size, double local_bytes) {
  double others = static_cast<double>(group_size - 1);
  double n = static_cast<double>(group_size);
  switch (kind) {
    case mesh::CollectiveKind::kAllGather:
      return local_bytes * others;  // its shard reaches every other device once
    case mesh::CollectiveKind::kReduceScatter:
    case mesh::CollectiveKind::kAllToAll:
      return local_bytes * others / n;
    case mesh::CollectiveKind::kAllReduce:
      return 2 * local_bytes * others / n;
    case mesh::CollectiveKind::kSlice:
    case mesh::CollectiveKind::kView:
      return 0;
    case mesh::CollectiveKind::kPermute:
    case mesh::CollectiveKind::kTransfer:
      break;
  }
  TVM_FFI_THROW(ValueError) << "the bytes of " << mesh::CollectiveName(kind)
                            << " depend on its plan";
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def(
      "distir.cost.BytesSent", [](ffi::String kind, int64_t group_size, double local_bytes) {
        for (mesh::CollectiveKind known : mesh::kAllCollectiveKinds) {
          if (kind == mesh::CollectiveName(known)) return BytesSent(known, group_size, local_bytes);
        }
        TVM_FFI_THROW(ValueError) << "unknown collective " << static_cast<std::string>(kind);
      });
}

}  // namespace cost
}  // namespace distir
