#include "lower/spmd/device_groups.h"

namespace distir {
namespace lower {

namespace ffi = tvm::ffi;

const DeviceGroups::Groups& DeviceGroups::Along(int root, const mesh::AxisList& axes) {
  auto [found, is_new] =
      groups_.try_emplace({root, std::vector<mesh::AxisRef>(axes.begin(), axes.end())});
  if (is_new) {
    for (const auto& group : mesh::DeviceGroups(meshes_.Root(root), axes))
      found->second.push_back(ffi::Array<int64_t>(group.begin(), group.end()));
  }
  return found->second;
}

}  // namespace lower
}  // namespace distir
