// Grows the region behind all-reduces that can be computed on shards.
#include "optimize/program/shard_region.h"

#include <algorithm>
#include <set>
#include <utility>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "rules/call/call_sharding.h"
#include "rules/call/infer_type.h"
#include "rules/call/projection.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir::optimize {

using mesh::AxisList;
using mesh::CollectiveKind;
using mesh::Sharding;

namespace {

// Number of values that a gather looks back for a place where it sends less.
constexpr int kMaxRetreat = 16;
// Leaving values out can make it worth while to leave out others that come later.
constexpr int kMaxSweeps = 3;
// Bytes are sums of fractions.
constexpr double kRounding = 1e-6;

AxisList Concatenate(AxisList axes, const AxisList& minor) {
  axes.insert(axes.end(), minor.begin(), minor.end());
  return mesh::Canonical(axes);
}

}  // namespace

ShardRegion::ShardRegion(EditableFunction* editable, Program* program,
                         const std::vector<EditableBinding*>& seeds, const Resharding& step,
                         int dim, const std::unordered_map<const EditableBinding*, int>& order)
    : editable_(*editable),
      meshes_(*program->meshes),
      kernels_(*program->kernels),
      costs_(*program->costs),
      root_(step.root),
      axes_(step.source.partial) {
  std::set<std::pair<int, EditableBinding*>> pending;
  std::set<const EditableBinding*> scattered(seeds.begin(), seeds.end());
  const Block* block = seeds[0]->block;
  view_ = ir::DTensorType::Cast(seeds[0]->value.ty()).device_mesh();
  for (EditableBinding* seed : seeds) pending.emplace(order.at(seed), seed);
  while (!pending.empty()) {
    EditableBinding* binding = pending.begin()->second;
    pending.erase(pending.begin());
    bool is_seed = scattered.count(binding) > 0;
    if (is_seed ? !AddSeed(binding, step, dim) : !AddCall(binding)) {
      if (is_seed) return;
      continue;
    }
    for (EditableBinding* user : editable_.UsersOf(binding->var)) {
      auto found = order.find(user);
      if (user->block == block && found != order.end()) pending.emplace(found->second, user);
    }
  }
  is_possible_ = true;
  Prune();
}

const RegionValue* ShardRegion::Find(const ir::Expr& var) const {
  auto found = index_of_.find(var.get());
  return found == index_of_.end() ? nullptr : &values_[found->second];
}

void ShardRegion::Append(RegionValue value) {
  const planning::Plan& gather =
      costs_.Plan(meshes_.Root(root_), value.sharded, value.whole, value.form.tensor_ty());
  value.gather_bytes = gather.received;
  value.outer_uses = editable_.NumUses(value.binding->var);
  for (int input : value.inputs) --values_[input].outer_uses;
  index_of_[value.binding->var.get()] = static_cast<int>(values_.size());
  values_.push_back(std::move(value));
}

bool ShardRegion::AddSeed(EditableBinding* binding, const Resharding& step, int dim) {
  auto type = ir::DTensorType::Cast(binding->value.ty());
  RegionValue value;
  value.binding = binding;
  value.is_seed = true;
  value.whole = value.sharded = step.target;
  value.sharded.dims[dim] = Concatenate(value.whole.dims[dim], axes_);
  if (!IsFurtherSharded(value.whole, value.sharded, type.tensor_ty())) return false;
  ir::Placement placement = meshes_.PlacementOn(view_, root_, value.sharded);
  if (!placement.defined()) return false;
  const mesh::Mesh& root = meshes_.Root(root_);
  const planning::Plan& scatter = costs_.Plan(root, step.source, value.sharded, type.tensor_ty());
  if (scatter.steps.size() != 1 || scatter.steps[0].kind != CollectiveKind::kReduceScatter)
    return false;
  scatter_bytes_ = scatter.received;
  reduce_bytes_ = costs_.Of(step, root, type.tensor_ty()).bytes;
  value.form = ir::MakeDTensorType(type.tensor_ty(), view_, placement);
  Append(std::move(value));
  return true;
}

/*! \brief True if one more dimension is sharded over the axes, into parts of one known size. */
bool ShardRegion::IsFurtherSharded(const Sharding& whole, const Sharding& sharded,
                                   const ir::TensorType& type) const {
  int changed = -1;
  for (size_t d = 0; d < whole.dims.size(); ++d) {
    if (mesh::Canonical(whole.dims[d]) == mesh::Canonical(sharded.dims[d])) continue;
    if (changed >= 0 || Concatenate(whole.dims[d], axes_) != mesh::Canonical(sharded.dims[d]))
      return false;
    changed = static_cast<int>(d);
  }
  if (changed < 0) return false;
  int64_t size = rules::StaticSizes(type)[changed];
  return size > 0 && size % mesh::NumShards(sharded.dims[changed]) == 0;
}

bool ShardRegion::OnlySlices(const Sharding& from, const Sharding& to,
                             const ir::TensorType& type) const {
  const planning::Plan& plan = costs_.Plan(meshes_.Root(root_), from, to, type);
  return std::all_of(plan.steps.begin(), plan.steps.end(),
                     [](const auto& step) { return step.kind == CollectiveKind::kSlice; });
}

bool ShardRegion::AddCall(EditableBinding* binding) {
  auto call = ir::Call::Cast(binding->value);
  if (!call.defined() || binding->cast.defined() || !IsPure(call) || !ir::Op::Is(call.op()) ||
      rules::FindOperator(call.op()) == nullptr)
    return false;
  auto type = ir::DTensorType::Cast(call.ty());
  if (!type.defined() || !type.device_mesh().same_as(view_)) return false;
  RegionValue value;
  value.binding = binding;
  value.operands.resize(call.args().size());
  std::vector<Sharding> given;
  std::vector<size_t> positions;
  std::vector<double> elements;
  for (size_t i = 0; i < call.args().size(); ++i) {
    const ir::Expr& arg = call.args()[i];
    if (ir::Tuple::Is(arg) || ir::TupleType::Is(arg.ty()) || ir::TensorType::Is(arg.ty()))
      return false;
    auto operand_ty = ir::DTensorType::Cast(arg.ty());
    if (!operand_ty.defined()) continue;
    if (!operand_ty.device_mesh().same_as(view_)) return false;
    given.push_back(meshes_.ShardingOf(operand_ty));
    positions.push_back(i);
    elements.push_back(rules::NumElements(rules::StaticSizes(operand_ty.tensor_ty())));
    auto found = index_of_.find(arg.get());
    if (found == index_of_.end()) continue;
    given.back() = values_[found->second].sharded;
    value.inputs.push_back(found->second);
  }
  rules::FactorRule rule =
      rules::RuleOf(rules::ViewCall(call, rules::StripDistribution(call.ty()), &kernels_));
  if (rule.results.size() != 1 || rule.operands.size() != given.size()) return false;
  auto decide = [&](const std::vector<Sharding>& operands) {
    std::vector<const Sharding*> known;
    for (const Sharding& operand : operands) known.push_back(&operand);
    return rules::ImpliedSharding(rule, known, {nullptr}, elements);
  };
  rules::CallSharding decided = decide(given);
  if (decided.is_decomposed || !decided.partial.empty()) return false;
  for (size_t k = 0; k < given.size(); ++k) {
    if (mesh::Canonical(decided.operands[k]) == mesh::Canonical(given[k])) continue;
    const ir::Expr& arg = call.args()[positions[k]];
    auto operand_ty = ir::DTensorType::Cast(arg.ty());
    if (index_of_.count(arg.get()) > 0 ||
        !IsFurtherSharded(given[k], decided.operands[k], operand_ty.tensor_ty()) ||
        !OnlySlices(given[k], decided.operands[k], operand_ty.tensor_ty()))
      return false;
    ir::Placement placement = meshes_.PlacementOn(view_, root_, decided.operands[k]);
    if (!placement.defined()) return false;
    value.operands[positions[k]] = ir::MakeDTensorType(operand_ty.tensor_ty(), view_, placement);
  }
  // Type inference on the decided operands.
  rules::CallSharding inferred = decide(decided.operands);
  value.sharded = inferred.results[0];
  if (!inferred.partial.empty() || inferred.operands != decided.operands) return false;
  value.whole = meshes_.ShardingOf(type);
  if (!IsFurtherSharded(value.whole, value.sharded, type.tensor_ty())) return false;
  ir::Placement placement = meshes_.PlacementOn(view_, root_, value.sharded);
  if (!placement.defined()) return false;
  value.form = ir::MakeDTensorType(type.tensor_ty(), view_, placement);
  Append(std::move(value));
  return true;
}

void ShardRegion::LeaveOut(int index) {
  values_[index].is_in = false;
  for (int input : values_[index].inputs) ++values_[input].outer_uses;
}

void ShardRegion::TakeBack(int index) {
  values_[index].is_in = true;
  for (int input : values_[index].inputs) --values_[input].outer_uses;
}

/*!
 * \brief Leaves a gathered value out, and values before it, largest first, if gathering what they
 * are computed from sends less. Example: the gather of logits moves in front of the product that
 * makes them.
 */
bool ShardRegion::Retreat(int index) {
  std::vector<int> left, frontier{index};
  double change = 0;
  while (!frontier.empty() && static_cast<int>(left.size()) < kMaxRetreat) {
    auto largest = std::max_element(frontier.begin(), frontier.end(), [this](int a, int b) {
      return values_[a].gather_bytes < values_[b].gather_bytes;
    });
    int now = *largest;
    frontier.erase(largest);
    change -= values_[now].gather_bytes;
    std::set<int> inputs(values_[now].inputs.begin(), values_[now].inputs.end());
    for (int input : inputs) {
      if (!values_[input].is_in || values_[input].outer_uses > 0) continue;
      change += values_[input].gather_bytes;
      if (!values_[input].is_seed) frontier.push_back(input);
    }
    LeaveOut(now);
    left.push_back(now);
    if (change < -kRounding) return true;
  }
  for (int each : left) TakeBack(each);
  return false;
}

void ShardRegion::Prune() {
  bool changed = true;
  for (int sweep = 0; changed && sweep < kMaxSweeps; ++sweep) {
    changed = false;
    for (int i = static_cast<int>(values_.size()) - 1; i >= 0; --i) {
      const RegionValue& value = values_[i];
      if (value.is_in && !value.is_seed && value.outer_uses > 0) changed |= Retreat(i);
    }
  }
  // A reduce-scatter with a gather behind it is the all-reduce.
  for (RegionValue& value : values_) {
    if (value.is_seed && value.outer_uses > 0) value.is_in = false;
  }
}

double ShardRegion::bytes() const {
  double bytes = 0;
  for (const RegionValue& value : values_) {
    if (value.is_seed) bytes += value.is_in ? scatter_bytes_ : reduce_bytes_;
    if (value.is_in && value.outer_uses > 0) bytes += value.gather_bytes;
  }
  return bytes;
}

int ShardRegion::num_seeds() const {
  return static_cast<int>(std::count_if(values_.begin(), values_.end(), [](const auto& value) {
    return value.is_seed && value.is_in;
  }));
}

int ShardRegion::num_values() const {
  return static_cast<int>(
      std::count_if(values_.begin(), values_.end(), [](const auto& value) { return value.is_in; }));
}

}  // namespace distir::optimize
