// Builds and checks factor rules.
#include "rules/factor/factor_rule.h"

#include <algorithm>
#include <utility>

#include "ir/leaves.h"
#include "ir/symbolic.h"
#include "rules/tir/rule.h"

namespace distir::rules {

void CollectTensorTypes(const ir::Type& type, std::vector<ir::TensorType>* out) {
  ir::ForEachLeaf(type, [out](const ir::Type& leaf) {
    if (auto tensor = ir::TensorType::Cast(leaf); tensor.defined()) {
      out->push_back(ir::WithKnownShape(tensor));
    } else if (auto dtensor = ir::DTensorType::Cast(leaf); dtensor.defined()) {
      out->push_back(ir::WithKnownShape(dtensor.tensor_ty()));
    }
  });
}

OpView ViewCall(const ir::Call& call, const ir::Type& result_ty, KernelTable* kernels) {
  OpView view;
  view.call = call;
  for (const ir::Expr& arg : call.args()) CollectTensorTypes(arg.ty(), &view.operands);
  CollectTensorTypes(result_ty, &view.results);
  if (kernels != nullptr) view.kernel = kernels->Find(call);
  return view;
}

int ShardableRank(const ir::TensorType& type) { return type.ndim() < 0 ? 0 : type.ndim(); }

Sizes StaticSizes(const ir::TensorType& type) {
  if (!ir::HasKnownShape(type)) return Sizes(ShardableRank(type), -1);
  Sizes sizes;
  for (const ir::Expr& dim : ir::ShapeOf(type)) sizes.push_back(ir::StaticDim(dim));
  return sizes;
}

namespace {

bool HasFactor(const std::vector<TensorFactors>& tensors, int factor) {
  for (const TensorFactors& tensor : tensors) {
    for (const FactorList& dim : tensor) {
      if (std::find(dim.begin(), dim.end(), factor) != dim.end()) return true;
    }
  }
  return false;
}

}  // namespace

bool FactorRule::IsCombined(size_t factor) const {
  if (factors[factor].Is<ReductionFactor>()) return true;
  return factors[factor].Is<DecomposedFactor>() && !HasFactor(results, static_cast<int>(factor));
}

bool FactorRule::IsOnlyInResults(size_t factor) const {
  return !HasFactor(operands, static_cast<int>(factor));
}

bool FactorRule::IsMade(size_t result, size_t dim) const {
  const FactorList& list = results[result][dim];
  return list.size() == 1 && !factors[list[0]].Is<ReplicatedFactor>() && IsOnlyInResults(list[0]);
}

bool FactorRule::operator==(const FactorRule& other) const {
  return factors == other.factors && operands == other.operands && results == other.results &&
         is_pass_through == other.is_pass_through;
}

size_t RuleSet::Hash::operator()(const FactorRule& rule) const {
  size_t hash = rule.factors.size();
  auto add = [&hash](size_t value) { hash = (hash ^ value) * 1099511628211u; };  // FNV-1a
  for (const Factor& factor : rule.factors) {
    add(static_cast<size_t>(factor.size));
    add(factor.kind.index());
  }
  for (const auto* tensors : {&rule.operands, &rule.results}) {
    for (const TensorFactors& tensor : *tensors) {
      add(tensor.size());
      for (const FactorList& dim : tensor) {
        for (int factor : dim) add(static_cast<size_t>(factor));
      }
    }
  }
  return hash;
}

bool SameSize(const ir::TensorType& a, int a_dim, const ir::TensorType& b, int b_dim) {
  if (!ir::HasKnownShape(a) || !ir::HasKnownShape(b)) return false;
  return ir::SameDim(ir::ShapeOf(a)[a_dim], ir::ShapeOf(b)[b_dim]);
}

RuleBuilder::RuleBuilder(const OpView& view) {
  for (const auto& type : view.operands) rule_.operands.emplace_back(ShardableRank(type));
  for (const auto& type : view.results) rule_.results.emplace_back(ShardableRank(type));
}

int RuleBuilder::Add(Factor factor) {
  rule_.factors.push_back(factor);
  return static_cast<int>(rule_.factors.size()) - 1;
}

FactorRule RuleBuilder::Finish() {
  // A factor of size 1 is in the way of those behind it, which are blocks without it.
  for (auto* tensors : {&rule_.operands, &rule_.results}) {
    for (TensorFactors& tensor : *tensors) {
      for (FactorList& dim : tensor) {
        if (dim.size() < 2) continue;
        dim.erase(std::remove_if(dim.begin(), dim.end(),
                                 [this](int factor) { return rule_.factors[factor].size == 1; }),
                  dim.end());
      }
    }
  }
  rule_.is_pass_through = true;
  for (const Factor& factor : rule_.factors) {
    if (!factor.Is<ParallelFactor>()) rule_.is_pass_through = false;
  }
  return std::move(rule_);
}

FactorRule ReplicateAll(const OpView& view) {
  // A dimension without factors is never sharded.
  return RuleBuilder(view).Finish();
}

FactorRule IdentityRule(const Sizes& sizes) {
  FactorRule rule;
  rule.is_pass_through = true;
  TensorFactors dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    rule.factors.push_back({sizes[i], ParallelFactor(), /*may_be_uneven=*/sizes[i] != 0});
    dims.push_back({static_cast<int>(i)});
  }
  rule.operands = {dims};
  rule.results = {dims};
  return rule;
}

}  // namespace distir::rules
