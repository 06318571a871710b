// Estimates the time of an operator on one device from its rule.
#include "stages/work.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "dialect/operators/annotation.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/call/projection.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir::stages {

namespace {

double Elements(const ir::TensorType& type) { return rules::NumElements(rules::StaticSizes(type)); }

/*! \brief True if a factor is summed over in several operands: of a product, not a reduction. */
bool IsProduct(const rules::FactorRule& rule, const std::set<int>& kept) {
  std::map<int, int> operands_of_factor;
  for (const rules::TensorFactors& operand : rule.operands) {
    for (const rules::FactorList& dim : operand) {
      for (int factor : dim) operands_of_factor[factor] += kept.count(factor) == 0;
    }
  }
  return std::any_of(operands_of_factor.begin(), operands_of_factor.end(),
                     [](const auto& entry) { return entry.second > 1; });
}

/*! \brief Number of terms that are summed for an element of a result. */
double Summed(const rules::FactorRule& rule, const std::vector<ir::TensorType>& operands) {
  std::set<int> kept;
  for (const rules::TensorFactors& result : rule.results) {
    for (const rules::FactorList& dim : result) kept.insert(dim.begin(), dim.end());
  }
  // A convolution sums over its window, which needs replication: no factor says that.
  const bool counts_whole = IsProduct(rule, kept);
  for (size_t i = rule.operands.size(); i-- > 0;) {
    if (rule.operands[i].empty()) continue;
    const rules::Sizes sizes = rules::StaticSizes(operands[i]);
    rules::Sizes summed;
    for (size_t dim = 0; dim < rule.operands[i].size(); ++dim) {
      const rules::FactorList& factors = rule.operands[i][dim];
      if (factors.empty() && counts_whole) summed.push_back(sizes[dim]);
      for (int factor : factors) {
        if (kept.count(factor) == 0) summed.push_back(rule.factors[factor].size);
      }
    }
    return std::max(rules::NumElements(summed), 1.0);
  }
  return 1;
}

}  // namespace

double WorkEstimate::SecondsOf(const ir::Binding& binding) {
  auto var_binding = ir::VarBinding::Cast(binding);
  if (!var_binding.defined()) return 0;
  if (auto call = ir::Call::Cast(var_binding.value()); call.defined())
    return SecondsOf(call, binding.var().ty());
  if (auto branch = ir::If::Cast(var_binding.value()); branch.defined())
    return std::max(SecondsOf(branch.true_branch()), SecondsOf(branch.false_branch()));
  return 0;
}

double WorkEstimate::SecondsOf(const ir::SeqExpr& seq) {
  double seconds = 0;
  for (const ir::BindingBlock& block : seq.blocks()) {
    for (const ir::Binding& binding : block.bindings()) seconds += SecondsOf(binding);
  }
  return seconds;
}

double WorkEstimate::SecondsOf(const ir::Call& call, const ir::Type& result_ty) {
  if (auto callee = ir::GlobalVar::Cast(call.op()); callee.defined()) {
    auto [known, is_new] = of_functions_.emplace(callee.get(), 0);
    if (!is_new)
      return known->second;  // while it is being computed, a recursive call: counted once
    auto found = mod_.functions().find(callee);
    ir::Function function =
        found == mod_.functions().end() ? ir::Function() : ir::Function::Cast((*found).second);
    if (!function.defined()) return 0;
    const double seconds = SecondsOf(function.body());
    of_functions_[callee.get()] = seconds;
    return seconds;
  }
  if (dialect::IsAnnotation(call) || dialect::IsBarrier(call.op()) ||
      dialect::IsShardingGroup(call.op()))
    return 0;
  rules::OpView view = rules::ViewCall(call, result_ty, &kernels_);
  double made = 0, bytes = 0;
  for (const ir::TensorType& result : view.results) {
    made = std::max(made, Elements(result));
    bytes += Elements(result) * ir::BytesPerElement(result);
  }
  const rules::Operator* record = rules::FindOperator(call.op());
  const double stated =
      record != nullptr && record->operations != nullptr ? record->operations(view) : 0;
  const double summed = rules::HasRule(call) ? Summed(rules::RuleOf(view), view.operands) : 1;
  const double touched = made * summed;
  for (const ir::TensorType& operand : view.operands) {
    bytes += std::min(Elements(operand), touched) * ir::BytesPerElement(operand);
  }
  const double derived = summed > 1 ? 2 * touched : touched;
  const double operations = stated > 0 ? stated : derived;
  return std::max(operations / speed_.operations, bytes / speed_.bytes);
}

}  // namespace distir::stages
