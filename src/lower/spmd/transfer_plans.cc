// Writes the plans of transfers, segment exchanges and permutes that the runtime reads.
#include "lower/spmd/transfer_plans.h"

#include <algorithm>
#include <vector>

#include "abi/segment_plan.h"
#include "abi/transfer_plan.h"
#include "dialect/operators/collective.h"
#include "dialect/operators/manual.h"
#include "dialect/operators/segment_exchange.h"
#include "ir/symbolic.h"
#include "mesh/layout.h"

namespace distir::lower {

abi::Layout TransferPlans::LayoutOf(const ir::DTensorType& type) {
  const int root = meshes_.RootOf(type);
  const mesh::Sharding& sharding = meshes_.ShardingOf(type);
  const dialect::ManualRegion* region = meshes_.RegionOf(root);
  if (region == nullptr) return mesh::LayoutOf(meshes_.Root(root), sharding);
  mesh::Sharding stack;
  stack.dims.push_back(region->manual);
  for (const mesh::AxisList& axes : sharding.dims) stack.dims.push_back(region->Outside(axes));
  return mesh::LayoutOf(meshes_.Root(region->outer), stack);
}

const tvm::ffi::String& TransferPlans::PlanOf(const ir::Call& call) {
  auto found = plans_.find(call.get());
  if (found != plans_.end()) return found->second;
  auto source_ty = ir::DTensorType::Cast(call.args()[0].ty());
  auto target_ty = ir::DTensorType::Cast(call.ty());
  const int source_root = meshes_.RootOf(source_ty), target_root = meshes_.RootOf(target_ty);
  abi::TransferPlan plan;
  plan.channel = static_cast<int64_t>(plans_.size());
  if (const dialect::ManualRegion* region = meshes_.RegionOf(target_root))
    plan.shape.push_back(mesh::NumShards(region->manual));
  for (const ir::Expr& dim : ir::ShapeOf(target_ty.tensor_ty()))
    plan.shape.push_back(std::max<int64_t>(ir::StaticDim(dim), 0));
  plan.source = LayoutOf(source_ty);
  plan.target = LayoutOf(target_ty);
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
  abi::SegmentPlan plan;
  plan.channel = static_cast<int64_t>(plans_.size());
  plan.dim = move.moved.dim + (MovesStack(target_ty) ? 1 : 0);
  plan.source_size = move.moved.source_size;
  plan.target_size = move.moved.target_size;
  plan.fill = move.fill == dialect::kAnyFill ? "0" : move.fill;
  plan.segments = std::move(move.segments);
  plan.source = LayoutOf(source_ty);
  plan.target = LayoutOf(target_ty);
  plan.closeness = cluster_.ClosenessAmong(plan.source.device_ids);
  return plans_.emplace(call.get(), abi::ToJson(plan)).first->second;
}

const tvm::ffi::String& TransferPlans::PermutationPlanOf(const ir::Call& call) {
  auto found = plans_.find(call.get());
  if (found != plans_.end()) return found->second;
  const mesh::Mesh& mesh = meshes_.Root(meshes_.RootOf(dialect::TargetMesh(call)));
  mesh::Sharding one_each = mesh::Sharding::Replicated(1);
  for (int axis = 0; axis < mesh.ndim(); ++axis)
    one_each.dims[0].push_back(mesh::FullAxis(mesh, axis));
  abi::SegmentPlan plan;
  plan.channel = static_cast<int64_t>(plans_.size());
  plan.source_size = plan.target_size = mesh.size();
  plan.fill = "0";
  for (const std::vector<int64_t>& group :
       mesh::DeviceGroups(mesh, dialect::ManualAxes(call, &meshes_))) {
    for (const auto& [source, target] : dialect::PairsOf(call))
      plan.segments.push_back(
          {mesh.PositionOf(group[source]), mesh.PositionOf(group[target]), 1, 1});
  }
  plan.source = plan.target = mesh::LayoutOf(mesh, one_each);
  const int rank = ir::DTensorType::Cast(call.ty()).tensor_ty().ndim();
  plan.source.dims.resize(rank + 1);
  plan.target.dims.resize(rank + 1);
  plan.closeness = cluster_.ClosenessAmong(plan.source.device_ids);
  return plans_.emplace(call.get(), abi::ToJson(plan)).first->second;
}

}  // namespace distir::lower
