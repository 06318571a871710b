// Converts shardings on a mesh to layouts (abi/layout.h), which runtime plans state.
#include "mesh/layout.h"

#include <tvm/ffi/error.h>

namespace distir::mesh {

abi::Digits DigitsOf(const Mesh& mesh, const AxisList& axes) {
  abi::Digits digits;
  for (const AxisRef& ref : Canonical(axes)) {
    int64_t stride = mesh.shape[ref.axis] / (ref.pre_size * ref.size);
    for (int axis = ref.axis + 1; axis < mesh.ndim(); ++axis) stride *= mesh.shape[axis];
    digits.push_back({stride, ref.size});
  }
  return digits;
}

abi::Layout LayoutOf(const Mesh& mesh, const Sharding& sharding) {
  if (!sharding.partial.empty()) {
    TVM_FFI_THROW(ValueError) << "what moves is partial over " << ToString(sharding.partial, mesh)
                              << "; reduce it first";
  }
  abi::Layout layout{mesh.device_ids, {}};
  for (const AxisList& axes : sharding.dims) layout.dims.push_back(DigitsOf(mesh, axes));
  return layout;
}

}  // namespace distir::mesh
