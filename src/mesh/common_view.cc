// Finds one view of a mesh whose axes name all of several axis references.
#include "mesh/common_view.h"

#include <algorithm>
#include <map>
#include <set>

namespace distir::mesh {

namespace {

/*!
 * \brief Positions at which the references cut each axis, ascending, from 1 to its size; nullopt
 * when one does not divide the next.
 */
std::optional<std::vector<std::vector<int64_t>>> CutsOf(const Mesh& root,
                                                        const std::vector<AxisList>& lists) {
  std::vector<std::set<int64_t>> found(root.shape.size());
  for (int axis = 0; axis < root.ndim(); ++axis) found[axis] = {1, root.shape[axis]};
  for (const AxisList& list : lists) {
    for (const AxisRef& ref : Canonical(list)) {
      found[ref.axis].insert({ref.pre_size, ref.pre_size * ref.size});
    }
  }
  std::vector<std::vector<int64_t>> cuts;
  for (const std::set<int64_t>& positions : found) {
    cuts.emplace_back(positions.begin(), positions.end());
    for (size_t i = 1; i < cuts.back().size(); ++i) {
      if (cuts.back()[i] % cuts.back()[i - 1] != 0) return std::nullopt;
    }
  }
  return cuts;
}

/*! \brief The references of a list, cut into parts. */
AxisList PartsOf(const AxisList& list, const std::vector<std::vector<int64_t>>& cuts) {
  AxisList parts;
  for (const AxisRef& ref : Canonical(list)) {
    int64_t begin = ref.pre_size;
    for (int64_t cut : cuts[ref.axis]) {
      if (cut <= begin || cut > ref.pre_size * ref.size) continue;
      parts.push_back(AxisRef{ref.axis, begin, cut / begin});
      begin = cut;
    }
  }
  return parts;
}

}  // namespace

std::optional<Mesh> CommonView(const Mesh& root, const std::vector<AxisList>& lists) {
  const auto cuts = CutsOf(root, lists);
  if (!cuts) return std::nullopt;
  std::map<AxisRef, std::set<AxisRef>> before;  // parts, and those that must come first
  AxisList used;
  for (const AxisList& list : lists) {
    const AxisList parts = PartsOf(list, *cuts);
    for (size_t i = 0; i < parts.size(); ++i) {
      std::set<AxisRef>& earlier = before[parts[i]];
      if (i > 0) earlier.insert(parts[i - 1]);
    }
    used.insert(used.end(), list.begin(), list.end());
  }
  for (const AxisRef& ref : Complement(root, used)) before[ref];

  AxisList order;
  while (!before.empty()) {
    // The first part in root order that waits for none.
    const auto next = std::find_if(before.begin(), before.end(),
                                   [](const auto& entry) { return entry.second.empty(); });
    if (next == before.end()) return std::nullopt;
    const AxisRef part = next->first;
    order.push_back(part);
    before.erase(next);
    for (auto& [other, earlier] : before) earlier.erase(part);
  }
  Sharding nested;  // one dimension, so that the parts keep this order
  nested.dims.push_back(order);
  return ToPlacement(root, nested, /*apart=*/order).mesh;
}

}  // namespace distir::mesh
