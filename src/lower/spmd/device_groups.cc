// Keeps the lists of device groups, one object for equal lists.
#include "lower/spmd/device_groups.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

const DeviceGroups::Groups& DeviceGroups::Along(int root, const mesh::AxisList& axes) {
  auto [found, is_new] =
      groups_.try_emplace({root, std::vector<mesh::AxisRef>(axes.begin(), axes.end())});
  if (is_new) {
    // All devices of a region do what those on its mesh do.
    const dialect::ManualRegion* region = meshes_.RegionOf(root);
    const mesh::AxisList along = region == nullptr ? axes : region->Outside(axes);
    for (const auto& group : mesh::DeviceGroups(meshes_.Root(meshes_.DevicesOf(root)), along))
      found->second.push_back(ffi::Array<int64_t>(group.begin(), group.end()));
  }
  return found->second;
}

}  // namespace distir::lower
