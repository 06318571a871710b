// Reads from types how calls on DTensors are computed, and caches the result for equal calls.
#include "rules/call/decision.h"

#include <utility>

#include "dialect/operators/local_view.h"
#include "dialect/placement.h"
#include "ir/leaves.h"
#include "rules/call/projection.h"
#include "rules/operator.h"
#include "rules/registry.h"
#include "rules/stated/user_rules.h"

namespace distir::rules {

bool Decisions::IsElementwise(const ir::Call& call) {
  const Operator* record = FindOperator(call.op());
  return record != nullptr && record->is_elementwise && FindUserRule(call) == nullptr;
}

bool Decisions::HasShardedOperand(const ir::Call& call) {
  const auto is_sharded = [this](const ir::Type& leaf) {
    const ir::DTensorType* type = ir::DTensorType::As(leaf);
    return type != nullptr && !meshes_.ShardingOf(*type).IsReplicated();
  };
  return std::any_of(call.args().begin(), call.args().end(),
                     [&](const ir::Expr& arg) { return ir::AnyLeaf(arg.ty(), is_sharded); });
}

const FactorRule* Decisions::RuleOfPlaced(const ir::Call& call) {
  if (!HasRule(call) || !dialect::TakesDTensors(call)) return nullptr;
  return known_rules_.Of(call, StripDistribution(call.ty()), &kernels_);
}

Decision Decisions::Read(const ir::Call& call, FactorRule rule) {
  InferredCall inferred = InferCall(call, StripDistribution(call.ty()), rule, &meshes_);
  return {std::move(rule), std::move(inferred)};
}

const Computed& Decisions::ComputedAs(const ir::Call& call, const FactorRule& rule) {
  operands_.clear();
  for (const ir::Expr& arg : call.args()) dialect::CollectDTensorTypes(arg.ty(), &operands_);
  key_ = {Address(&rule)};
  for (const ir::DTensorType& type : operands_) {
    key_.push_back(Address(type.defined() ? type.device_mesh().get() : nullptr));
    if (!type.defined()) continue;
    key_.push_back(Address(&meshes_.ShardingOf(type)));
    key_.push_back(Bits(NumElements(StaticSizes(type.tensor_ty()))));
  }
  auto found = computed_.find(key_);
  if (found == computed_.end()) {
    Decision decision = Read(call, rule);
    found = computed_.emplace(key_, Computed{decision.call.root, std::move(decision.call.sharding)})
                .first;
  }
  return found->second;
}

std::optional<Decision> Decisions::Of(const ir::Call& call) {
  const FactorRule* rule = RuleOfPlaced(call);
  if (rule == nullptr) return std::nullopt;
  return Read(call, *rule);
}

Decision Decisions::OfKernel(const ir::Call& call) {
  Decision decision{RuleOf(ViewCall(call, StripDistribution(call.ty()), &kernels_)), {}};
  const PlacedTensors operands = PlacedArguments(call, &meshes_);
  const PlacedTensors results = PlacedResults(call, &meshes_);
  decision.call.sharding =
      ImpliedSharding(decision.rule, operands.shardings, results.shardings, operands.elements);
  decision.call.type = call.ty();
  for (const PlacedTensors* tensors : {&operands, &results}) {
    for (const ir::DTensorType& type : tensors->types) {
      if (!type.defined()) continue;
      decision.call.device_mesh = type.device_mesh();
      decision.call.root = meshes_.RootOf(type);
    }
  }
  return decision;
}

std::optional<Decision> Decisions::OfLocalView(const ir::Call& call) {
  if (!dialect::IsLocalView(call.op()) || !dialect::TakesDTensors(call)) return std::nullopt;
  Decision decision = Read(call, RuleOf(ViewCall(call, StripDistribution(call.ty()), &kernels_)));
  std::vector<mesh::Sharding>& results = decision.call.sharding.results;
  for (size_t i = 0; i < results.size(); ++i) {
    auto tuple = ir::TupleType::Cast(call.ty());
    auto stated = ir::DTensorType::Cast(tuple.defined() ? tuple.fields()[i] : call.ty());
    if (!stated.defined() || meshes_.RootOf(stated) != decision.call.root) return std::nullopt;
    results[i] = meshes_.ShardingOf(stated);
  }
  return decision;
}

bool IsAsDecided(const FactorRule& rule, const CallSharding& decided, const CallSharding& read) {
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    if (rule.IsOnlyInResults(f)) continue;
    if (mesh::Canonical(decided.factors[f]) != mesh::Canonical(read.factors[f])) return false;
  }
  return true;
}

}  // namespace distir::rules
