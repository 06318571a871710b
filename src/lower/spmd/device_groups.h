/*!
 * \file lower/spmd/device_groups.h
 * \brief Computes the device groups of collectives from mesh axes; makes each list of groups once.
 */
#ifndef DISTIR_LOWER_SPMD_DEVICE_GROUPS_H_
#define DISTIR_LOWER_SPMD_DEVICE_GROUPS_H_

#include <map>
#include <utility>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"

namespace distir::lower {

class DeviceGroups {
 public:
  using Groups = tvm::ffi::Array<tvm::ffi::Array<int64_t>>;

  explicit DeviceGroups(dialect::MeshTable* meshes) : meshes_(*meshes) {}

  /*! \brief The groups of devices that differ along `axes` of a root mesh only. */
  const Groups& Along(int root, const mesh::AxisList& axes);

 private:
  dialect::MeshTable& meshes_;
  std::map<std::pair<int, std::vector<mesh::AxisRef>>, Groups> groups_;
};

}  // namespace distir::lower
#endif  // DISTIR_LOWER_SPMD_DEVICE_GROUPS_H_
