#include "rules/registry.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "ir/pass.h"
#include "rules/operator.h"
#include "rules/tails.h"
#include "rules/tir_rule.h"
#include "rules/user_rules.h"

namespace distir {
namespace rules {

namespace {

void WarnOnce(const std::string& name, const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  std::lock_guard<std::mutex> lock(mutex);
  if (warned.insert(name).second) ir::Warn(message);
}

}  // namespace

bool HasRule(const ir::Call& call) {
  return FindOperator(call.op()) != nullptr || KernelTable::IsKernelCall(call.op()) ||
         FindUserRule(call) != nullptr;
}

FactorRule RuleOf(const OpView& view) {
  const ir::Expr& op = view.call.op();
  if (const RuleText* rule = FindUserRule(view.call)) return ApplyRule(*rule, view);
  if (const Operator* record = FindOperator(op)) {
    // A scalar has nothing to share out.
    bool is_loss = std::any_of(view.operands.begin(), view.operands.end(),
                               [](const ir::TensorType& type) { return type.ndim() != 0; });
    if (is_loss && record->summary.replicated[0] != '\0') {
      WarnOnce(record->name,
               std::string("operator ") + record->name +
                   " keeps its operands and results replicated: " + record->summary.replicated);
    }
    FactorRule rule = record->rule(view);
    MarkUneven(*record, view, &rule);
    return rule;
  }
  if (KernelTable::IsKernelCall(op)) return RuleOfKernelCall(view);
  if (!view.operands.empty() || !view.results.empty()) {
    std::string name = CalleeName(view.call);
    WarnOnce(name,
             "no sharding rule for operator " + name + ": its operands and results are replicated");
  }
  return ReplicateAll(view);
}

}  // namespace rules
}  // namespace distir
