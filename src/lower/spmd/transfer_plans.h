/*!
 * \file lower/spmd/transfer_plans.h
 * \brief Plans of a module's moves between layouts, as the runtime reads them.
 */
#ifndef DISTIR_LOWER_SPMD_TRANSFER_PLANS_H_
#define DISTIR_LOWER_SPMD_TRANSFER_PLANS_H_

#include <tvm/ffi/string.h>

#include <unordered_map>
#include <utility>

#include "cost/cluster.h"
#include "dialect/mesh_table.h"
#include "ir/node.h"

namespace distir {
namespace lower {

/*! \brief One plan per call, the same for every SPMD group; channels are numbered in order of
 * first sight. */
class TransferPlans {
 public:
  TransferPlans(cost::Cluster cluster, dialect::MeshTable* meshes)
      : cluster_(std::move(cluster)), meshes_(*meshes) {}
  /*! \brief The plan (abi/transfer_plan.h) of a transfer, permute or exchange. */
  const tvm::ffi::String& PlanOf(const ir::Call& call);
  /*! \brief The same (abi/segment_plan.h) of a segment exchange. */
  const tvm::ffi::String& SegmentPlanOf(const ir::Call& call);

 private:
  const cost::Cluster cluster_;
  dialect::MeshTable& meshes_;
  std::unordered_map<const tvm::ffi::Object*, tvm::ffi::String> plans_;
};

}  // namespace lower
}  // namespace distir
#endif  // DISTIR_LOWER_SPMD_TRANSFER_PLANS_H_
