// The name of a mesh axis as a global function: what messages call one that users have not named.
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include "mesh/plain_data.h"

namespace distir {
namespace mesh {

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def("distir.mesh.AxisName", [](int64_t axis) {
    return ffi::String(Mesh().AxisName(ToIndex(axis)));
  });
}

}  // namespace mesh
}  // namespace distir
