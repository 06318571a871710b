/*!
 * \file mesh/mesh.cc
 * \brief Device meshes: coordinates, validity, groups of devices along axes.
 */
#include <tvm/ffi/error.h>

#include <algorithm>

#include "mesh/axis_text.h"
#include "mesh/sharding.h"
#include "support/counted.h"

namespace distir::mesh {

int64_t Mesh::size() const {
  int64_t product = 1;
  for (int64_t extent : shape) product *= extent;
  return product;
}

std::vector<int64_t> Mesh::Coordinates(int64_t position) const {
  std::vector<int64_t> coordinates(shape.size());
  for (int axis = ndim() - 1; axis >= 0; --axis) {
    coordinates[axis] = position % shape[axis];
    position /= shape[axis];
  }
  return coordinates;
}

int64_t Mesh::PositionOf(int64_t device_id) const {
  if (device_ids.empty()) return -1;
  // Ids are mostly consecutive, so look where the id then is before searching.
  const int64_t guess = device_id - device_ids.front();
  if (guess >= 0 && guess < static_cast<int64_t>(device_ids.size()) &&
      device_ids[guess] == device_id) {
    return guess;
  }
  auto it = std::find(device_ids.begin(), device_ids.end(), device_id);
  return it == device_ids.end() ? -1 : it - device_ids.begin();
}

bool Mesh::operator==(const Mesh& other) const {
  return shape == other.shape && device_ids == other.device_ids;
}

AxisRef FullAxis(const Mesh& mesh, int axis) { return AxisRef{axis, 1, mesh.shape[axis]}; }

void CheckValid(const Mesh& mesh) {
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (mesh.shape[axis] < 1) {
      TVM_FFI_THROW(ValueError) << AxisText(mesh, axis) << " has size " << mesh.shape[axis]
                                << "; it must be positive";
    }
  }
  // Divides the ids down instead of multiplying sizes up: a product of made-up sizes may not fit.
  int64_t per_rest = static_cast<int64_t>(mesh.device_ids.size());
  for (int64_t extent : mesh.shape) per_rest = per_rest % extent == 0 ? per_rest / extent : 0;
  if (per_rest != 1) {
    TVM_FFI_THROW(ValueError) << "the mesh " << ToString(mesh) << " has "
                              << support::Counted(mesh.device_ids.size(), "device id", "device ids")
                              << ", not one for each device of its shape";
  }
  std::vector<int64_t> sorted = mesh.device_ids;
  std::sort(sorted.begin(), sorted.end());
  if (!sorted.empty() && sorted.front() < 0) {
    TVM_FFI_THROW(ValueError) << "device id " << sorted.front() << " is negative";
  }
  auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    TVM_FFI_THROW(ValueError) << "device id " << *twice << " occurs twice in a mesh";
  }
}

int64_t ShardIndex(const Mesh& mesh, const AxisList& axes,
                   const std::vector<int64_t>& coordinates) {
  int64_t index = 0;
  for (const AxisRef& ref : axes) {
    const int64_t minor = mesh.shape[ref.axis] / (ref.pre_size * ref.size);
    index = index * ref.size + coordinates[ref.axis] / minor % ref.size;
  }
  return index;
}

std::vector<std::vector<int64_t>> DeviceGroups(const Mesh& mesh, const AxisList& axes) {
  // The index along the complement, in mesh order, grows with the position of a group's first
  // device, so it is the number of the group.
  const AxisList others = Complement(mesh, axes);
  const int64_t group_size = NumShards(axes);
  if (NumShards(others) * group_size != mesh.size()) {
    TVM_FFI_THROW(ValueError) << "the axes " << ToString(axes, mesh) << " do not group the mesh "
                              << ToString(mesh) << ": they overlap or exceed it";
  }
  std::vector<std::vector<int64_t>> groups(NumShards(others), std::vector<int64_t>(group_size));
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const std::vector<int64_t> at = mesh.Coordinates(position);
    groups[ShardIndex(mesh, others, at)][ShardIndex(mesh, axes, at)] = mesh.device_ids[position];
  }
  return groups;
}

}  // namespace distir::mesh
