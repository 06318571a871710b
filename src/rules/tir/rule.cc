// Applies kernel rules to R.call_tir and local views.
#include "rules/tir/rule.h"

#include <algorithm>
#include <optional>
#include <set>

#include "dialect/operators/local_view.h"
#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/symbolic.h"
#include "rules/registry.h"
#include "rules/stated/user_rules.h"
#include "rules/tails.h"

namespace distir::rules {

std::string KernelName(const ir::Call& call) {
  auto name = ir::GlobalVar::Cast(call.args()[0]);
  return name.defined() ? name.name() : ir::Print(call.args()[0]);
}

namespace {

FactorRule ReplicatedKernel(const OpView& view, const std::string& reason) {
  WarnOfCall(view, "no sharding rule for kernel " + KernelName(view.call) + ": " + reason +
                       "; its operands and results are replicated; state a rule in its attribute " +
                       kRuleAttribute);
  return ReplicateAll(view);
}

}  // namespace

bool KernelTable::IsKernelCall(const ir::Expr& op) {
  static const ir::Op ops[] = {ir::GetOp("relax.call_tir"), ir::GetOp("relax.call_tir_inplace"),
                               ir::GetOp("relax.call_tir_with_grad")};
  return std::any_of(std::begin(ops), std::end(ops),
                     [&op](const ir::Op& kernel_op) { return op.same_as(kernel_op); });
}

const KernelRule* KernelTable::Find(const ir::Call& call) {
  if (!IsKernelCall(call.op()) && !dialect::IsLocalView(call.op())) return nullptr;
  if (!ir::GlobalVar::Is(call.args()[0])) return nullptr;
  auto found = functions_.find(ir::GlobalVar::Cast(call.args()[0]));
  if (found == functions_.end()) return nullptr;
  auto function = ir::PrimFunc::Cast((*found).second);
  if (!function.defined()) return nullptr;
  std::unique_ptr<KernelRule>& rule = rules_[function.get()];
  if (rule == nullptr) rule = std::make_unique<KernelRule>(DeriveKernelRule(function));
  return rule.get();
}

std::vector<size_t> ParamsOfResults(const ir::Call& call, size_t num_operands, size_t num_results) {
  auto in_place = ir::attrs::kCallTIRInplaceInplaceIndices(call.attrs()).as<ffi::Array<int64_t>>();
  std::vector<size_t> params;
  size_t next = num_operands;
  for (size_t r = 0; r < num_results; ++r) {
    int64_t operand = in_place && r < in_place->size() ? (*in_place)[r] : -1;
    params.push_back(operand < 0 ? next++ : static_cast<size_t>(operand));
  }
  return params;
}

FactorRule RuleOfKernelCall(const OpView& view) {
  if (view.kernel == nullptr) return ReplicateAll(view);
  const KernelRule& kernel = *view.kernel;
  if (auto stated = StatedRule(KernelName(view.call), kernel.function))
    return ApplyRule(*stated, view);
  if (!kernel.failure.empty()) return ReplicatedKernel(view, kernel.failure);
  const ir::NodeArray<ir::Var>& params = kernel.function.params();
  size_t num_operands = view.operands.size();
  const std::vector<size_t> of_results =
      ParamsOfResults(view.call, num_operands, view.results.size());
  FactorRule rule;
  rule.factors = kernel.factors;
  size_t next = 0;  // of the kernel's tensors; scalars stand between them
  rule.results.resize(view.results.size());
  std::set<size_t> found;
  for (size_t i = 0; i < params.size(); ++i) {
    auto factors = kernel.buffers.find(params[i].get());
    if (factors == kernel.buffers.end()) continue;
    size_t tensor = next++;
    auto result = std::find(of_results.begin(), of_results.end(), tensor) - of_results.begin();
    bool is_result = result < static_cast<std::ptrdiff_t>(of_results.size());
    if ((!is_result && tensor >= num_operands) || kernel.is_written[i] != is_result)
      return ReplicatedKernel(view, "it does not write exactly its results");
    Sizes sizes = StaticSizes(is_result ? view.results[result] : view.operands[tensor]);
    if (sizes.size() != factors->second.size())
      return ReplicatedKernel(view, "parameter `" + params[i].name() + "` has another rank");
    for (size_t d = 0; d < sizes.size(); ++d) {
      // A kernel for any size, called with a constant one.
      const FactorList& list = factors->second[d];
      if (list.size() == 1 && rule.factors[list[0]].size < 0) rule.factors[list[0]].size = sizes[d];
    }
    if (tensor < num_operands) rule.operands.push_back(factors->second);
    if (!is_result) continue;
    rule.results[result] = factors->second;
    found.insert(tensor);
  }
  if (found.size() != of_results.size() || rule.operands.size() != num_operands)
    return ReplicatedKernel(view, "the call has other tensors");
  // Factors of loops and intermediate buffers alone are nobody's to shard.
  std::set<int> seen;
  for (const auto* tensors : {&rule.operands, &rule.results}) {
    for (const TensorFactors& tensor : *tensors) {
      for (const FactorList& list : tensor) seen.insert(list.begin(), list.end());
    }
  }
  rule.is_pass_through = std::all_of(seen.begin(), seen.end(), [&rule](int factor) {
    return rule.factors[factor].Is<ParallelFactor>();
  });
  RequireWhole(Padded::kGrains, view, &rule);
  return rule;
}

namespace {

/*! \brief The call as one device makes it, its tensors as the kernel's buffers state them; nullopt
 * where the kernel has other tensors. */
std::optional<OpView> ViewOfDevice(const OpView& view) {
  std::vector<ir::BufferType> buffers;
  for (const ir::Var& param : view.kernel->function.params()) {
    auto type = ir::BufferType::Cast(param.ty());
    if (type.defined()) buffers.push_back(type);
  }
  const std::vector<size_t> of_results =
      ParamsOfResults(view.call, view.operands.size(), view.results.size());
  OpView local = view;
  local.function = nullptr;
  auto set = [&](size_t param, ir::TensorType* type) {
    if (param >= buffers.size() ||
        buffers[param].shape().size() != static_cast<size_t>(ShardableRank(*type)))
      return false;
    *type = ir::MakeTensorType(buffers[param].shape(), *type);
    return true;
  };
  for (size_t i = 0; i < local.operands.size(); ++i) {
    if (!set(i, &local.operands[i])) return std::nullopt;
  }
  for (size_t i = 0; i < local.results.size(); ++i) {
    if (!set(of_results[i], &local.results[i])) return std::nullopt;
  }
  return local;
}

/*! \brief Gives the factors of a rule, major ones first, the sizes that dimensions have. */
class RuleScaling {
 public:
  explicit RuleScaling(FactorRule* rule) : rule_(*rule), is_scaled_(rule->factors.size()) {}

  void Scale(const std::vector<TensorFactors>& tensors, const std::vector<ir::TensorType>& whole,
             const std::vector<ir::TensorType>& local) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Sizes sizes = StaticSizes(whole[i]), parts = StaticSizes(local[i]);
      for (size_t d = 0; d < tensors[i].size(); ++d) Scale(tensors[i][d], sizes[d], parts[d]);
    }
  }

 private:
  void Scale(const FactorList& factors, int64_t size, int64_t part) {
    if (factors.empty() || is_scaled_[factors[0]]) return;
    Factor& major = rule_.factors[factors[0]];
    is_scaled_[factors[0]] = true;
    if (size < 0 || part < 0) {
      major.size = factors.size() == 1 ? size : -1;
    } else if (part > 0 && size % part == 0 && major.size >= 0) {
      major.size *= size / part;
    }
  }

  FactorRule& rule_;
  std::vector<bool> is_scaled_;
};

}  // namespace

FactorRule RuleOfLocalView(const OpView& view) {
  if (view.kernel == nullptr) return ReplicateAll(view);
  // A rule that a user states is of whole tensors; a kernel that has one runs on any shards.
  if (auto stated = StatedRule(KernelName(view.call), view.kernel->function))
    return ApplyRule(*stated, view);
  const std::optional<OpView> local = ViewOfDevice(view);
  if (!local) return ReplicateAll(view);
  FactorRule rule = RuleOfKernelCall(*local);
  RuleScaling scaling(&rule);
  scaling.Scale(rule.operands, view.operands, local->operands);
  scaling.Scale(rule.results, view.results, local->results);
  for (Factor& factor : rule.factors) factor.may_be_uneven = false;
  return rule;
}

}  // namespace distir::rules
