// Finds the rule of a call: a user's, the operator record's, or the kernel's.
#include "rules/registry.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "dialect/operators/copies_reduction.h"
#include "dialect/operators/local_view.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/pass.h"
#include "rules/operator.h"
#include "rules/stated/user_rules.h"
#include "rules/tails.h"
#include "rules/tir/rule.h"

namespace distir::rules {

void WarnOfCall(const OpView& view, const std::string& message) {
  if (view.function == nullptr) return;
  static std::mutex mutex;
  static std::set<std::string> warned;
  std::lock_guard<std::mutex> lock(mutex);
  const std::string text = "in `" + *view.function + "`: " + message;
  if (warned.insert(text).second) ir::Warn(text);
}

bool HasRule(const ir::Call& call) {
  return FindOperator(call.op()) != nullptr || KernelTable::IsKernelCall(call.op()) ||
         FindUserRule(call) != nullptr;
}

namespace {

/*! \brief True if the dimensions of all tensors of a call are known: those of others cannot be told
 * from each other, and no shape of a shard follows from them. */
bool HasKnownShapes(const OpView& view) {
  for (const auto* tensors : {&view.operands, &view.results}) {
    for (const ir::TensorType& type : *tensors) {
      if (type.ndim() != 0 && !ir::HasKnownShape(type)) return false;
    }
  }
  return true;
}

}  // namespace

FactorRule RuleOf(const OpView& view) {
  const ir::Expr& op = view.call.op();
  if (const RuleText* rule = FindUserRule(view.call)) return ApplyRule(*rule, view);
  if (const Operator* record = FindOperator(op)) {
    // A scalar has nothing to share out.
    bool is_loss = std::any_of(view.operands.begin(), view.operands.end(),
                               [](const ir::TensorType& type) { return type.ndim() != 0; });
    if (is_loss && record->summary.replicated[0] != '\0') {
      WarnOfCall(view,
                 std::string("operator ") + record->name +
                     " keeps its operands and results replicated: " + record->summary.replicated);
    }
    if (!HasKnownShapes(view)) return ReplicateAll(view);
    FactorRule rule = record->rule(view);
    MarkUneven(*record, view, &rule);
    return rule;
  }
  if (KernelTable::IsKernelCall(op)) return RuleOfKernelCall(view);
  if (dialect::IsLocalView(op)) return RuleOfLocalView(view);
  if (dialect::IsCopiesReduction(op)) return ReplicateAll(view);
  if (!view.operands.empty() || !view.results.empty()) {
    std::string name = ir::CalleeName(view.call);
    WarnOfCall(view, "no sharding rule for operator " + name +
                         ": its operands and results are replicated; state a rule with "
                         "dx.register_rule(\"" +
                         name + "\", ...)");
  }
  return ReplicateAll(view);
}

}  // namespace distir::rules
