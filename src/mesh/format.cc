/*!
 * \file mesh/format.cc
 * \brief Meshes and shardings as text, for messages and tests.
 */
#include <numeric>

#include "mesh/sharding.h"

namespace distir {
namespace mesh {

namespace {

std::string AxisName(int axis) {
  static constexpr const char* kNames[] = {"x", "y", "z", "w"};
  return axis >= 0 && axis < 4 ? kNames[axis] : "a" + std::to_string(axis);
}

std::string Join(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

/*! \brief `mesh` may be null; then whole axes are not known as such. */
std::string Format(const AxisList& axes, const Mesh* mesh) {
  if (axes.empty()) return "-";
  std::string text;
  for (const AxisRef& ref : axes) {
    if (!text.empty()) text += ",";
    text += AxisName(ref.axis);
    const bool whole = mesh != nullptr && ref.axis >= 0 && ref.axis < mesh->ndim() &&
                       ref == FullAxis(*mesh, ref.axis);
    if (!whole) text += ":(" + std::to_string(ref.pre_size) + ")" + std::to_string(ref.size);
  }
  return text;
}

std::string Format(const Sharding& sharding, const Mesh* mesh) {
  std::string text = "[";
  for (size_t dim = 0; dim < sharding.dims.size(); ++dim) {
    text += (dim > 0 ? "|" : "") + Format(sharding.dims[dim], mesh);
  }
  text += "]";
  if (sharding.partial.empty()) return text;
  return text + " partial=" + ReductionName(sharding.reduction) + "{" +
         Format(sharding.partial, mesh) + "}";
}

}  // namespace

std::string ToString(const AxisList& axes) { return Format(axes, nullptr); }

std::string ToString(const AxisList& axes, const Mesh& mesh) { return Format(axes, &mesh); }

std::string ToString(const Sharding& sharding) { return Format(sharding, nullptr); }

std::string ToString(const Sharding& sharding, const Mesh& mesh) { return Format(sharding, &mesh); }

std::string ToString(const Mesh& mesh) {
  std::vector<int64_t> consecutive(mesh.device_ids.size());
  if (!consecutive.empty()) {
    std::iota(consecutive.begin(), consecutive.end(), mesh.device_ids.front());
  }
  const bool range = consecutive.size() > 1 && consecutive == mesh.device_ids;
  return "(" + Join(mesh.shape) + ") of devices " +
         (range ? std::to_string(consecutive.front()) + ".." + std::to_string(consecutive.back())
                : Join(mesh.device_ids));
}

}  // namespace mesh
}  // namespace distir
