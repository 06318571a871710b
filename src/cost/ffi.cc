// The cost model as a global function.
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <string>

#include "cost/collective_cost.h"
#include "support/functions.h"

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
  support::Functions().def("distir.cost.BytesSent",
                           [](ffi::String kind, int64_t group_size, double local_bytes) {
                             return BytesSent(KindOf(kind), group_size, local_bytes);
                           });
}

}  // namespace cost
}  // namespace distir
