/*!
 * \file tests/native/plain_shardings.h
 * \brief Axis lists and shardings as plain FFI data, checked on the way in.
 *
 * An axis reference is [axis, pre_size, size], an axis list an array of them; a sharding is
 * [list per dimension, partial list, reduction name]: [x | -] partial over y is
 * [[[[0, 1, 2]], []], [[1, 1, 4]], "sum"] on a mesh (2, 4).
 *
 * \throws ValueError (every To* function) naming what is not of this form or breaks the algebra's
 * invariants.
 */
#ifndef TESTS_NATIVE_PLAIN_SHARDINGS_H_
#define TESTS_NATIVE_PLAIN_SHARDINGS_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <vector>

#include "mesh/plain_data.h"
#include "mesh/sharding.h"

namespace distir::test {

namespace ffi = tvm::ffi;

using AxisData = ffi::Array<mesh::Ints>;
using ShardingData = ffi::Array<ffi::Any>;

mesh::Ints ToInts(const std::vector<int64_t>& values);
mesh::AxisList ToAxes(const AxisData& data);
AxisData FromAxes(const mesh::AxisList& axes);
/*! \brief A list whose references lie within the axes of the mesh and do not overlap. */
mesh::AxisList ToAxesOn(const mesh::Mesh& mesh, const AxisData& data);
mesh::Sharding ToSharding(const ShardingData& data);
mesh::Sharding ToShardingOn(const mesh::Mesh& mesh, const ShardingData& data);
ShardingData FromSharding(const mesh::Sharding& sharding);

}  // namespace distir::test

#endif  // TESTS_NATIVE_PLAIN_SHARDINGS_H_
