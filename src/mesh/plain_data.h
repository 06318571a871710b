/*!
 * \file mesh/plain_data.h
 * \brief Converts meshes and integers from and to plain FFI data, with checks.
 *
 * \throws ValueError (every To* function) naming what is not of this form or breaks the algebra's
 * invariants.
 */
#ifndef DISTIR_MESH_PLAIN_DATA_H_
#define DISTIR_MESH_PLAIN_DATA_H_

#include <tvm/ffi/container/array.h>

#include <cstdint>
#include <vector>

#include "mesh/sharding.h"

namespace distir::mesh {

namespace ffi = tvm::ffi;

using Ints = ffi::Array<int64_t>;

std::vector<int64_t> ToVector(const Ints& values);
/*! \brief A number of an axis or a dimension. */
int ToIndex(int64_t value);
Mesh ToMesh(const Ints& shape, const Ints& device_ids);

}  // namespace distir::mesh
#endif  // DISTIR_MESH_PLAIN_DATA_H_
