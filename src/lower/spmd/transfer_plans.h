/*!
 * \file lower/spmd/transfer_plans.h
 * \brief Writes plans of a module's moves between layouts in the form that the runtime reads.
 */
#ifndef DISTIR_LOWER_SPMD_TRANSFER_PLANS_H_
#define DISTIR_LOWER_SPMD_TRANSFER_PLANS_H_

#include <tvm/ffi/string.h>

#include <unordered_map>
#include <utility>

#include "abi/layout.h"
#include "cost/cluster.h"
#include "dialect/mesh_table.h"
#include "ir/node.h"

namespace distir::lower {

/*! \brief One plan per call, the same for every SPMD group; channels are numbered in order of
 * first sight. */
class TransferPlans {
 public:
  TransferPlans(cost::Cluster cluster, dialect::MeshTable* meshes)
      : cluster_(std::move(cluster)), meshes_(*meshes) {}
  /*! \brief The plan (abi/transfer_plan.h) of a transfer, permute or exchange. */
  const tvm::ffi::String& PlanOf(const ir::Call& call);
  /*! \brief Plan of a segment exchange (abi/segment_plan.h). */
  const tvm::ffi::String& SegmentPlanOf(const ir::Call& call);
  /*! \brief Plan of a permutation in a manual region, which moves blocks of a stack: each device
   * has one, in the order of the mesh. */
  const tvm::ffi::String& PermutationPlanOf(const ir::Call& call);
  /*! \brief True if values of a type are moved within a manual region. A plan then is that of their
   * stack: a first dimension numbers the devices along the manual axes, each of which has one. */
  bool MovesStack(const ir::DTensorType& type) const {
    return meshes_.RegionOf(meshes_.RootOf(type)) != nullptr;
  }

 private:
  /*! \brief The layout of a tensor, or of the stack of those of a manual region. */
  abi::Layout LayoutOf(const ir::DTensorType& type);

  const cost::Cluster cluster_;
  dialect::MeshTable& meshes_;
  std::unordered_map<const tvm::ffi::Object*, tvm::ffi::String> plans_;
};

}  // namespace distir::lower
#endif  // DISTIR_LOWER_SPMD_TRANSFER_PLANS_H_
