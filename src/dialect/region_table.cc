/*!
 * \file dialect/region_table.cc
 * \brief Keeps the manual regions of a mesh table.
 */
#include <algorithm>

#include "dialect/mesh_table.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

using mesh::AxisList;
using mesh::AxisPair;
using mesh::AxisRef;

/*! \brief A set of axes in the order of their mesh. */
AxisList Ordered(AxisList axes) {
  std::sort(axes.begin(), axes.end());
  return mesh::Canonical(axes);
}

std::vector<AxisPair> Reversed(const std::vector<AxisPair>& pairs) {
  std::vector<AxisPair> reversed;
  for (const AxisPair& pair : pairs) reversed.push_back({pair.to, pair.from});
  return reversed;
}

}  // namespace

void MeshTable::NameRegionMesh(const ir::DeviceMesh& outer, const AxisList& axes,
                               const ir::DeviceMesh& inner) {
  const mesh::Mesh named = NamedMesh(outer);
  const std::vector<AxisList> of_named = named.ndim() == static_cast<int>(outer.shape().size())
                                             ? AxesOf(outer)
                                             : AxesOf(RootMesh(RootOf(outer)));
  AxisNames names;
  for (const AxisRef& ref : axes) {
    for (int axis = 0; axis < named.ndim() && !named.axis_names.empty(); ++axis) {
      if (of_named[axis].size() == 1 && of_named[axis][0] == ref)
        names.push_back(named.axis_names[axis]);
    }
  }
  if (names.size() == inner.shape().size()) Name(inner, names);
}

const ManualRegion& MeshTable::EnterRegion(const ir::DeviceMesh& device_mesh,
                                           const std::vector<int>& manual_axes) {
  const int outer = RootOf(device_mesh);
  AxisList manual;
  for (int axis : manual_axes) {
    const AxisList& refs = AxesOf(device_mesh)[axis];
    manual.insert(manual.end(), refs.begin(), refs.end());
  }
  manual = Ordered(manual);
  const auto [found, is_new] =
      entered_regions_.try_emplace({outer, std::vector<AxisRef>(manual.begin(), manual.end())},
                                   ManualRegion{outer, outer, {}, {}, {}});
  ManualRegion& region = found->second;
  if (!is_new) return region;
  const mesh::RegionMesh inner = mesh::MakeRegionMesh(Root(outer), manual);
  region.manual = manual;
  const ir::DeviceMesh object =
      manual.empty() ? RootMesh(outer) : Intern(inner.mesh);  // axes of size 1 change nothing
  region.inner = RootOf(object);
  if (!manual.empty()) NameRegionMesh(device_mesh, inner.outer, object);
  for (size_t axis = 0; axis < inner.outer.size(); ++axis) {
    const AxisList& refs = AxesOf(object)[axis];
    if (refs.size() == 1) region.to_inner.push_back({inner.outer[axis], refs[0]});
  }
  region.to_outer = Reversed(region.to_inner);
  if (manual.empty()) return region;

  ManualRegion whole = region;
  if (const ManualRegion* around = RegionOf(outer)) {
    whole.outer = around->outer;
    whole.manual = around->Outside(manual);
    whole.manual.insert(whole.manual.end(), around->manual.begin(), around->manual.end());
    whole.manual = Ordered(whole.manual);
    whole.to_inner.clear();
    for (const AxisPair& pair : region.to_inner) {
      const AxisList refs = around->Outside({pair.from});
      if (refs.size() == 1) whole.to_inner.push_back({refs[0], pair.to});
    }
    whole.to_outer = Reversed(whole.to_inner);
  }
  const auto [known, is_first] = regions_.emplace(region.inner, whole);
  DISTIR_REQUIRE(
      is_first || (known->second.outer == whole.outer && known->second.manual == whole.manual),
      ValueError)
      << "two manual regions, of " << mesh::ToString(Root(known->second.outer)) << " and of "
      << mesh::ToString(Root(whole.outer)) << ", would both be described on "
      << mesh::ToString(Root(region.inner)) << "; state both on one mesh";
  return region;
}

const ManualRegion* MeshTable::RegionOf(int root) const {
  auto found = regions_.find(root);
  return found == regions_.end() ? nullptr : &found->second;
}

const ManualRegion* MeshTable::RegionBetween(int outer, int inner) const {
  for (const auto& [key, region] : entered_regions_) {
    if (region.outer == outer && region.inner == inner) return &region;
  }
  const ManualRegion* whole = RegionOf(inner);
  return whole != nullptr && whole->outer == outer ? whole : nullptr;
}

int MeshTable::DevicesOf(int root) const {
  const ManualRegion* region = RegionOf(root);
  return region == nullptr ? root : region->outer;
}

std::pair<ir::DeviceMesh, std::vector<int>> MeshTable::WholeAxes(int root, const AxisList& axes) {
  const ir::DeviceMesh view =
      Intern(mesh::ToPlacement(Root(root), mesh::Sharding::Replicated(0), axes).mesh);
  std::vector<int> found;
  const std::vector<AxisList>& of_view = AxesOf(view);
  for (size_t axis = 0; axis < of_view.size(); ++axis) {
    if (!of_view[axis].empty() && mesh::Overlaps(of_view[axis], axes))
      found.push_back(static_cast<int>(axis));
  }
  return {view, found};
}

}  // namespace distir::dialect
