// Finds which reductions the result of a call on DTensors still needs.
#include "redistribute/partial.h"

#include <algorithm>
#include <vector>

#include "dialect/operators/collective.h"
#include "dialect/operators/fused_norm.h"
#include "dialect/operators/local_view.h"
#include "ir/leaves.h"
#include "rules/linearity.h"

namespace distir::redistribute {

namespace {

/*! \brief Decision for a local view, by the index maps of its kernel; its type states what differs
 * from device to device anyway. */
std::optional<rules::Decision> OfLocalView(const ir::Call& call, rules::Decisions* decisions) {
  auto decision = decisions->OfLocalView(call);
  if (!decision || decision->call.sharding.results.size() != 1) return std::nullopt;
  for (const mesh::AxisList& axes : decision->call.sharding.results[0].dims) {
    if (mesh::Overlaps(axes, decision->call.sharding.partial)) return std::nullopt;
  }
  return decision;
}

/*! \brief Partial value that a call computed in this way leaves. */
std::optional<PartialValue> PartOf(int root, const rules::CallSharding& sharding) {
  if (sharding.partial.empty()) return std::nullopt;
  PartialValue value{root, sharding.results[0]};
  value.sharding.partial = sharding.partial;
  value.sharding.reduction = sharding.reduction;
  return value;
}

}  // namespace

std::optional<PartialValue> PartialResult(const ir::Call& call, rules::Decisions* decisions) {
  if (dialect::IsLocalView(call.op())) {
    const auto decision = OfLocalView(call, decisions);
    return decision ? PartOf(decision->call.root, decision->call.sharding) : std::nullopt;
  }
  const rules::Computed* computed = decisions->WithFactor<rules::ReductionFactor>(call);
  return computed != nullptr ? PartOf(computed->root, computed->sharding) : std::nullopt;
}

namespace {

/*! \brief The operands that carry tensors, tuples flattened. */
void CollectOperands(const ir::Expr& arg, std::vector<ir::Expr>* operands) {
  if (auto tuple = ir::Tuple::Cast(arg); tuple.defined()) {
    for (const ir::Expr& field : tuple.fields()) CollectOperands(field, operands);
  } else if (ir::TensorType::Is(arg.ty()) || dialect::HasDTensor(arg.ty())) {
    operands->push_back(arg);
  }
}

/*! \brief True if a tensor in the type is sharded over one of the axes. */
bool IsShardedOver(const ir::Type& type, const PartialAxes& partial, dialect::MeshTable* meshes) {
  return ir::AnyLeaf(type, [&](const ir::Type& leaf) {
    auto dtensor = ir::DTensorType::Cast(leaf);
    if (!dtensor.defined()) return false;
    if (meshes->RootOf(dtensor) != partial.root) return true;
    const mesh::Sharding& sharding = meshes->ShardingOf(dtensor);
    return std::any_of(sharding.dims.begin(), sharding.dims.end(), [&](const mesh::AxisList& axes) {
      return mesh::Overlaps(axes, partial.axes);
    });
  });
}

bool SameAxes(const PartialAxes& a, const PartialAxes& b) {
  auto as_sharding = [](const PartialAxes& partial) {
    mesh::Sharding sharding;
    sharding.partial = partial.axes;
    sharding.reduction = partial.reduction;
    return mesh::Canonical(sharding);
  };
  return a.root == b.root && as_sharding(a) == as_sharding(b);
}

/*! \brief Axes that are still partial after a reduction. */
std::optional<PartialAxes> Reduced(const PartialAxes& partial, const ir::Call& call,
                                   dialect::MeshTable* meshes) {
  const mesh::Mesh& root = meshes->Root(partial.root);
  const std::vector<mesh::AxisList>& views = meshes->AxesOf(dialect::TargetMesh(call));
  mesh::AxisList done = mesh::Complement(root, partial.axes);
  for (int axis : dialect::ReduceAxes(call))
    done.insert(done.end(), views[axis].begin(), views[axis].end());
  PartialAxes rest{partial.root, mesh::Complement(root, done), partial.reduction};
  if (rest.axes.empty()) return std::nullopt;
  return rest;
}

}  // namespace

PartialFlow FlowThrough(const ir::Call& call,
                        const std::function<const PartialAxes*(const ir::Expr&)>& partial_of,
                        const std::optional<PartialValue>& own, dialect::MeshTable* meshes) {
  std::optional<PartialAxes> own_axes;
  if (own) own_axes = PartialAxes{own->root, own->sharding.partial, own->sharding.reduction};
  std::vector<ir::Expr> operands;
  for (const ir::Expr& arg : call.args()) CollectOperands(arg, &operands);
  std::vector<bool> mask;
  const PartialAxes* partial = nullptr;
  bool alike = true;
  for (const ir::Expr& operand : operands) {
    const PartialAxes* found = partial_of(operand);
    mask.push_back(found != nullptr);
    if (found == nullptr) continue;
    if (partial == nullptr) partial = found;
    alike = alike && SameAxes(*partial, *found);
  }
  if (partial == nullptr) return {true, own_axes};
  if (dialect::IsFusedNorm(call.op())) {
    // It reduces its first operand, and norms finished sums only.
    bool is_only_x = mask[0] && std::count(mask.begin(), mask.end(), true) == 1;
    bool is_whole = partial->reduction == mesh::Reduction::kSum && !Reduced(*partial, call, meshes);
    return {is_only_x && is_whole, std::nullopt};
  }
  auto refused = [&own_axes] { return PartialFlow{false, own_axes}; };
  if (!alike) return refused();
  if (auto collective = dialect::DTensorCollective(call.op())) {
    if (*collective == mesh::CollectiveKind::kAllReduce ||
        *collective == mesh::CollectiveKind::kReduceScatter) {
      if (dialect::ReductionOf(call) != partial->reduction) return refused();
      return {true, Reduced(*partial, call, meshes)};
    }
    bool moves = *collective != mesh::CollectiveKind::kTransfer;
    for (const ir::Expr& operand : operands)
      moves = moves && !IsShardedOver(operand.ty(), *partial, meshes);
    if (!moves || IsShardedOver(call.ty(), *partial, meshes)) return refused();
    return {true, *partial};
  }
  if (!rules::CommutesWith(call, mask, partial->reduction)) return refused();
  for (const ir::Expr& operand : operands) {
    if (IsShardedOver(operand.ty(), *partial, meshes)) return refused();
  }
  if (IsShardedOver(call.ty(), *partial, meshes)) return refused();
  PartialAxes result = *partial;
  if (own_axes) {
    if (own_axes->root != result.root || own_axes->reduction != result.reduction ||
        mesh::Overlaps(own_axes->axes, result.axes))
      return refused();
    result.axes.insert(result.axes.end(), own_axes->axes.begin(), own_axes->axes.end());
  }
  return {true, result};
}

}  // namespace distir::redistribute
