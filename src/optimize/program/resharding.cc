// Reads collectives as pairs of shardings, prices them, and writes plans as collectives.
#include "optimize/program/resharding.h"

#include <tuple>

#include "cost/collective_cost.h"
#include "cost/exchange.h"
#include "dialect/operators/collective.h"
#include "redistribute/steps.h"

namespace distir::optimize {

using mesh::AxisList;
using mesh::CollectiveKind;
using mesh::Sharding;

std::optional<Resharding> ReadResharding(const ir::Expr& value, dialect::MeshTable* meshes) {
  const ir::Call* found = ir::Call::As(value);
  if (found == nullptr) return std::nullopt;
  const ir::Call& call = *found;
  auto kind = dialect::DTensorCollective(call.op());
  if (!kind || *kind == CollectiveKind::kTransfer) return std::nullopt;
  auto source_ty = ir::DTensorType::Cast(call.args()[0].ty());
  auto target_ty = ir::DTensorType::Cast(call.ty());
  if (!source_ty.defined() || !target_ty.defined()) return std::nullopt;
  Resharding step;
  step.kind = *kind;
  step.root = meshes->RootOf(source_ty);
  step.source = meshes->ShardingOf(source_ty);
  step.target = meshes->ShardingOf(target_ty);
  std::vector<int> axes = dialect::ReduceAxes(call);
  if (!axes.empty()) {
    const std::vector<AxisList>& views = meshes->AxesOf(target_ty.device_mesh());
    for (int axis : axes) {
      step.source.partial.insert(step.source.partial.end(), views[axis].begin(), views[axis].end());
    }
    step.source.reduction = dialect::ReductionOf(call);
    step.source = mesh::Canonical(step.source);
  }
  return step;
}

bool Traffic::IsBetterThan(const Traffic& other) const {
  // Sums of the same times in another order differ in their last bits.
  constexpr double kRounding = 1e-9;
  double margin = kRounding * other.seconds;
  if (bytes > other.bytes * (1 + kRounding) || seconds > other.seconds + margin) return false;
  return seconds < other.seconds - margin ||
         std::tie(collectives, slices) < std::tie(other.collectives, other.slices);
}

double LocalBytes(const ir::TensorType& type, const Sharding& sharding) {
  double shards = 1;
  for (const AxisList& axes : sharding.dims) shards *= static_cast<double>(mesh::NumShards(axes));
  return redistribute::SizeOf(type).bytes / shards;
}

Traffic Costs::Of(const Resharding& step, const mesh::Mesh& root,
                  const ir::TensorType& type) const {
  switch (step.kind) {
    case CollectiveKind::kView:
      return {};
    case CollectiveKind::kSlice:
      return {0, 0, 0, 1};
    case CollectiveKind::kPermute:
    case CollectiveKind::kExchange: {
      cost::Layout source(root, step.source), target(root, step.target);
      cost::ExchangeCost cost =
          cost::CostOfExchange(cluster_, source, target, redistribute::SizeOf(type).bytes);
      return {cost.seconds, cost.bytes(), 1, 0};
    }
    default:
      break;
  }
  AxisList axes = step.source.partial;
  if (axes.empty()) axes = mesh::DescribeStep(step.kind, root, step.source, step.target, {}).axes;
  int64_t group = mesh::NumShards(axes);
  double bytes = LocalBytes(type, step.source);
  const cost::Link& link = cluster_.links()[cluster_.Along(root, axes)];
  return {cost::Seconds(step.kind, cluster_.launch(), link, group, bytes),
          cost::BytesSent(step.kind, group, bytes), 1, 0};
}

const planning::Plan& Costs::Plan(const mesh::Mesh& root, const Sharding& source,
                                  const Sharding& target, const ir::TensorType& type) {
  return planner_.Find(root, source, target, redistribute::SizeOf(type));
}

Traffic Costs::Of(const planning::Plan& plan) {
  Traffic traffic{plan.seconds, plan.received, 0, 0};
  for (const planning::PlanStep& step : plan.steps) {
    (step.kind == CollectiveKind::kSlice ? traffic.slices : traffic.collectives) += 1;
  }
  return traffic;
}

ir::Expr WritePlan(EditableFunction* editable, EditableBinding* at, const ir::Expr& value, int root,
                   const Sharding& source, const planning::Plan& plan,
                   const ir::DTensorType& target, dialect::MeshTable* meshes) {
  std::string name = at->var.defined() ? at->var.name() : "lv";
  auto bound = [&](const ir::Expr& expr) {
    return ir::Call::Is(expr) ? ir::Expr(editable->InsertBefore(at, name, expr)) : expr;
  };
  ir::Expr now = value;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    bool is_last = i + 1 == plan.steps.size();
    now = redistribute::MakeStep(bound(now), plan.steps[i], source.reduction, root,
                                 target.tensor_ty(), is_last ? target : ir::DTensorType(), meshes);
  }
  if (dialect::SamePlacement(ir::DTensorType::Cast(now.ty()), target)) return now;
  return dialect::MakeCollective(CollectiveKind::kView, bound(now), target);
}

}  // namespace distir::optimize
