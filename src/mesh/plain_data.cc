// Converts meshes and integers from FFI data, with checks.
#include "mesh/plain_data.h"

#include <tvm/ffi/error.h>

#include <limits>

namespace distir::mesh {

std::vector<int64_t> ToVector(const Ints& values) {
  return std::vector<int64_t>(values.begin(), values.end());
}

int ToIndex(int64_t value) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
    TVM_FFI_THROW(ValueError) << value << " is no number of an axis or a dimension";
  }
  return static_cast<int>(value);
}

Mesh ToMesh(const Ints& shape, const Ints& device_ids) {
  Mesh mesh{ToVector(shape), ToVector(device_ids)};
  CheckValid(mesh);
  return mesh;
}

}  // namespace distir::mesh
