/*!
 * \file mesh/format.cc
 * \brief Prints meshes and shardings in the users' notation, for messages, comments and signatures.
 */
#include <numeric>

#include "mesh/axis_text.h"
#include "mesh/sharding.h"
#include "support/escaped_text.h"

namespace distir::mesh {

namespace {

// A message lists at most so many devices one by one.
constexpr size_t kMostListed = 16;

/*! \brief A string as Python prints it. */
std::string Quoted(const std::string& text) {
  std::string quoted;
  for (char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return "'" + support::EscapedText(quoted) + "'";
}

/*! \brief A tuple as Python prints it. */
std::string TupleText(const std::vector<std::string>& entries) {
  std::string text = "(";
  for (size_t i = 0; i < entries.size(); ++i) text += (i > 0 ? ", " : "") + entries[i];
  return text + (entries.size() == 1 ? ",)" : ")");
}

std::string RefText(const AxisRef& ref, const Mesh& mesh) {
  std::string text = mesh.AxisName(ref.axis);
  const bool whole = ref.axis >= 0 && ref.axis < mesh.ndim() && ref == FullAxis(mesh, ref.axis);
  if (!whole) text += ":(" + std::to_string(ref.pre_size) + ")" + std::to_string(ref.size);
  return Quoted(text);
}

std::string DevicesText(const std::vector<int64_t>& device_ids) {
  std::vector<int64_t> consecutive(device_ids.size());
  if (!consecutive.empty()) std::iota(consecutive.begin(), consecutive.end(), device_ids.front());
  if (consecutive.size() > 1 && consecutive == device_ids) {
    return std::to_string(device_ids.front()) + ".." + std::to_string(device_ids.back());
  }
  std::string text;
  for (size_t i = 0; i < device_ids.size() && i < kMostListed; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(device_ids[i]);
  }
  if (device_ids.size() <= kMostListed) return text;
  return text + " and " + std::to_string(device_ids.size() - kMostListed) + " more";
}

}  // namespace

std::string Mesh::AxisName(int axis) const {
  if (axis >= 0 && axis < static_cast<int>(axis_names.size())) return axis_names[axis];
  static constexpr const char* kNames[] = {"x", "y", "z", "w"};
  return axis >= 0 && axis < 4 ? kNames[axis] : "a" + std::to_string(axis);
}

std::string AxisText(const Mesh& mesh, int axis) {
  const std::string name = Quoted(mesh.AxisName(axis));
  if (!mesh.axis_names.empty()) return "mesh axis " + name;
  return "axis " + std::to_string(axis) + " (" + name + ") of the mesh";
}

std::string Legend(const Mesh& mesh) {
  if (!mesh.axis_names.empty() || mesh.ndim() == 0) return "";
  std::string text;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    text +=
        (axis > 0 ? ", " : "; ") + Quoted(mesh.AxisName(axis)) + " is axis " + std::to_string(axis);
  }
  return text + " of the mesh, which names none";
}

std::string ToString(const AxisList& axes, const Mesh& mesh) {
  if (axes.empty()) return "None";
  std::vector<std::string> refs;
  for (const AxisRef& ref : axes) refs.push_back(RefText(ref, mesh));
  return refs.size() == 1 ? refs.front() : TupleText(refs);
}

std::string ToString(const Sharding& sharding, const Mesh& mesh) {
  std::vector<std::string> dims;
  for (const AxisList& axes : sharding.dims) dims.push_back(ToString(axes, mesh));
  std::string text = TupleText(dims);
  if (sharding.partial.empty()) return text;
  return text + ", partial " + ReductionName(sharding.reduction) + " over " +
         ToString(sharding.partial, mesh);
}

std::string ToString(const Mesh& mesh) {
  std::string text;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    text += (axis > 0 ? ", " : "(") + support::EscapedText(mesh.AxisName(axis)) + "=" +
            std::to_string(mesh.shape[axis]);
  }
  return (mesh.ndim() > 0 ? text : "(") + ") of devices " + DevicesText(mesh.device_ids);
}

}  // namespace distir::mesh
