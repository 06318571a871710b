/*!
 * \file abi/plan_moves.h
 * \brief Bytes that devices send by a plan of transfers or of segments, and the mesh axes that
 * groups and plans run along.
 *
 * Worked example: on a mesh of shape (2, 4) with axes dp and tp over devices 0..7, the group
 * [0, 1, 2, 3] runs along tp, and so does a plan by which each device sends to its neighbour within
 * a row.
 */
#ifndef DISTIR_ABI_PLAN_MOVES_H_
#define DISTIR_ABI_PLAN_MOVES_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/collective.h"

namespace distir::abi {

struct PlanTraffic {
  int64_t devices;  // that take part
  double bytes;     // that the busiest of some devices sends
};

/*!
 * \brief What devices send in a collective that has a plan.
 * \param plan As JSON.
 * \param among The devices of which the busiest is sought; nothing: all.
 * \param bytes Bytes of its argument on a device.
 * \throws ValueError where the text is no plan.
 */
PlanTraffic TrafficOf(Collective collective, const std::string& plan,
                      const std::optional<std::vector<int64_t>>& among, double bytes);

/*! \brief A mesh as users know it; devices are listed row-major. */
struct NamedMesh {
  std::vector<int64_t> shape;
  std::vector<std::string> axis_names;
  std::vector<int64_t> device_ids;
};

/*! \brief Reads [shape, axis names, device ids] of each mesh.
 * \throws ValueError where a mesh has not as many names as axes. */
std::vector<NamedMesh> ReadNamedMeshes(
    const tvm::ffi::Array<tvm::ffi::Array<tvm::ffi::Any>>& meshes);

/*! \brief Describes groups and plans by the names of mesh axes. */
class MeshAxes {
 public:
  explicit MeshAxes(std::vector<NamedMesh> meshes) : meshes_(std::move(meshes)) {}
  /*! \brief The axes that a group spans, in the order of the first mesh that has all of its
   * devices; of a part of an axis, that axis. */
  std::vector<std::string> OfGroup(const std::vector<int64_t>& group) const;
  /*! \brief The axes along which senders and receivers differ; none of one side of a transfer,
   * and none where a tensor leaves its mesh. */
  std::vector<std::string> OfPlan(Collective collective, const std::string& plan) const;

 private:
  std::vector<NamedMesh> meshes_;
};

}  // namespace distir::abi
#endif  // DISTIR_ABI_PLAN_MOVES_H_
