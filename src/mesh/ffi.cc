/*!
 * \file mesh/ffi.cc
 * \brief Mesh functions for Python: the name of an unnamed axis, and the part of a tensor on a
 * device.
 *
 * The parts are those of the layouts that plans state, so Python and the workers' collectives agree
 * on them. Worked example, a matrix whose rows are sharded along the second axis of a mesh (2, 2):
 * \code
 *   distir.mesh.Blocks([2, 2], [4, 5, 6, 7], [-1, 0], 2)
 *     [[2, 1], [0, 0], [1, 0], [0, 0], [1, 0]]    parts per dimension, then a block per device
 *   distir.mesh.ShardShape([5, 8], [2, 1])
 *     [3, 8]                                      the second shard ends in a row of padding
 * \endcode
 */
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <limits>
#include <vector>

#include "mesh/layout.h"
#include "mesh/plain_data.h"
#include "support/functions.h"

namespace distir::mesh {

namespace {

/*! \brief Into how many parts each dimension is cut; then, for each device of the mesh, its part of
 * each dimension. */
ffi::Array<ffi::Shape> BlocksOf(const Ints& shape, const Ints& device_ids, const Ints& placement,
                                int64_t ndim) {
  const Mesh mesh = ToMesh(shape, device_ids);
  std::vector<int> axis_to_dim;
  for (int64_t dim : placement) axis_to_dim.push_back(ToIndex(dim));
  const Sharding sharding = FromPlacement(mesh, axis_to_dim, ToIndex(ndim), mesh);
  const abi::Blocks blocks(LayoutOf(mesh, sharding));
  ffi::Array<ffi::Shape> result = {ffi::Shape(blocks.counts())};
  for (int64_t position = 0; position < mesh.size(); ++position)
    result.push_back(ffi::Shape(blocks.BlockAt(position)));
  return result;
}

/*!
 * \brief The shape of every shard. If the parts do not divide a size, the last are padded.
 * \throws ValueError for sizes and parts that no tensor can have.
 */
ffi::Shape ShardShape(const Ints& shape, const Ints& parts) {
  if (shape.size() != parts.size()) {
    TVM_FFI_THROW(ValueError) << "a tensor of " << shape.size() << " dimensions is cut along "
                              << parts.size();
  }
  std::vector<int64_t> local;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t size = shape[d], count = parts[d];
    if (size < 0 || count < 1 || size > std::numeric_limits<int64_t>::max() - count) {
      TVM_FFI_THROW(ValueError) << "dimension " << d << " of size " << size
                                << " cannot be cut into " << count << " parts";
    }
    local.push_back(EvenExtent(size, count) / count);
  }
  return ffi::Shape(local);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.mesh.AxisName",
           [](int64_t axis) { return ffi::String(Mesh().AxisName(ToIndex(axis))); })
      .def("distir.mesh.Blocks", BlocksOf)
      .def("distir.mesh.ShardShape", ShardShape);
}

}  // namespace distir::mesh
