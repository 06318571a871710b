#include "lower/spmd/transfer_plans.h"

#include <algorithm>
#include <vector>

#include "abi/segment_plan.h"
#include "abi/transfer_plan.h"
#include "dialect/operators/segment_exchange.h"
#include "ir/symbolic.h"
#include "mesh/layout.h"

namespace distir {
namespace lower {

const tvm::ffi::String& TransferPlans::PlanOf(const ir::Call& call) {
  auto found = plans_.find(call.get());
  if (found != plans_.end()) return found->second;
  auto source_ty = ir::DTensorType::Cast(call.args()[0].ty());
  auto target_ty = ir::DTensorType::Cast(call.ty());
  const int source_root = meshes_.RootOf(source_ty), target_root = meshes_.RootOf(target_ty);
  abi::TransferPlan plan;
  plan.channel = static_cast<int64_t>(plans_.size());
  for (const ir::Expr& dim : ir::ShapeOf(target_ty.tensor_ty()))
    plan.shape.push_back(std::max<int64_t>(ir::StaticDim(dim), 0));
  plan.source = mesh::LayoutOf(meshes_.Root(source_root), meshes_.ShardingOf(source_ty));
  plan.target = mesh::LayoutOf(meshes_.Root(target_root), meshes_.ShardingOf(target_ty));
  std::vector<int64_t> devices = plan.source.device_ids;
  if (source_root != target_root) {
    devices.insert(devices.end(), plan.target.device_ids.begin(), plan.target.device_ids.end());
  }
  plan.closeness = cluster_.ClosenessAmong(devices);
  return plans_.emplace(call.get(), abi::ToJson(plan)).first->second;
}

const tvm::ffi::String& TransferPlans::SegmentPlanOf(const ir::Call& call) {
  auto found = plans_.find(call.get());
  if (found != plans_.end()) return found->second;
  dialect::SegmentMove move = dialect::MoveOf(call);
  const auto source_ty = ir::DTensorType::Cast(call.args()[0].ty());
  const auto target_ty = ir::DTensorType::Cast(call.ty());
  const int root = meshes_.RootOf(target_ty);
  abi::SegmentPlan plan;
  plan.channel = static_cast<int64_t>(plans_.size());
  plan.dim = move.moved.dim;
  plan.source_size = move.moved.source_size;
  plan.target_size = move.moved.target_size;
  plan.fill = move.fill == dialect::kAnyFill ? "0" : move.fill;
  plan.segments = std::move(move.segments);
  plan.source = mesh::LayoutOf(meshes_.Root(root), meshes_.ShardingOf(source_ty));
  plan.target = mesh::LayoutOf(meshes_.Root(root), meshes_.ShardingOf(target_ty));
  plan.closeness = cluster_.ClosenessAmong(plan.source.device_ids);
  return plans_.emplace(call.get(), abi::ToJson(plan)).first->second;
}

}  // namespace lower
}  // namespace distir
