/*!
 * \file mesh/plain_data.h
 * \brief Meshes, axis lists and shardings as plain FFI data, checked on the way in.
 *
 * An axis reference is [axis, pre_size, size], an axis list an array of them; a sharding is
 * [list per dimension, partial list, reduction name]: [x | -] partial over y is
 * [[[[0, 1, 2]], []], [[1, 1, 4]], "sum"] on a mesh (2, 4).
 *
 * \throws ValueError (every To* function) naming what is not of this form or breaks the algebra's
 * invariants.
 */
#ifndef DISTIR_MESH_PLAIN_DATA_H_
#define DISTIR_MESH_PLAIN_DATA_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <vector>

#include "mesh/sharding.h"

namespace distir {
namespace mesh {

namespace ffi = tvm::ffi;

using Ints = ffi::Array<int64_t>;
using AxisData = ffi::Array<Ints>;
using ShardingData = ffi::Array<ffi::Any>;

std::vector<int64_t> ToVector(const Ints& values);
Ints ToInts(const std::vector<int64_t>& values);
/*! \brief A number of an axis or a dimension. */
int ToIndex(int64_t value);
Mesh ToMesh(const Ints& shape, const Ints& device_ids);
AxisList ToAxes(const AxisData& data);
AxisData FromAxes(const AxisList& axes);
/*! \brief A list whose references lie within the axes of the mesh and do not overlap. */
AxisList ToAxesOn(const Mesh& mesh, const AxisData& data);
Sharding ToSharding(const ShardingData& data);
Sharding ToShardingOn(const Mesh& mesh, const ShardingData& data);
ShardingData FromSharding(const Sharding& sharding);

}  // namespace mesh
}  // namespace distir
#endif  // DISTIR_MESH_PLAIN_DATA_H_
