#include "rules/registry.h"

#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "ir/build.h"
#include "ir/pass.h"
#include "ir/registration.h"
#include "rules/tails.h"
#include "rules/tir_rule.h"
#include "rules/user_rules.h"

namespace distir {
namespace rules {

namespace {

std::map<std::string, RuleEntry>& Entries() {
  static std::map<std::string, RuleEntry> entries;
  return entries;
}

void WarnOnce(const std::string& name, const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  std::lock_guard<std::mutex> lock(mutex);
  if (warned.insert(name).second) ir::Warn(message);
}

void Enter(const char* family, const RuleSummary& summary, RuleEntry entry) {
  entry.family = family;
  entry.summary = summary;
  Entries()[entry.op] = entry;
}

}  // namespace

RuleTable::RuleTable(const char* family, const RuleSummary& summary,
                     std::initializer_list<RuleEntry> entries) {
  for (const RuleEntry& entry : entries) Enter(family, summary, entry);
}

ReplicatedTable::ReplicatedTable(const char* family, const char* reason,
                                 std::initializer_list<const char*> ops) {
  for (const char* op : ops) Enter(family, {"", "", "", "", reason}, {op, ReplicateAll});
}

DescribedTable::DescribedTable(const char* family, const char* special,
                               std::initializer_list<const char*> ops) {
  for (const char* op : ops) Enter(family, {"", "", "", special}, {op, nullptr});
}

const RuleEntry* FindRule(const ir::Expr& op) {
  if (!ir::Op::Is(op)) return nullptr;
  // Operators are unique objects, never freed, so the pointer is a key.
  static thread_local std::unordered_map<const ffi::Object*, const RuleEntry*> cache;
  auto it = cache.find(op.get());
  if (it == cache.end()) {
    auto found = Entries().find(ir::Op::Cast(op).name());
    bool has_rule = found != Entries().end() && found->second.rule != nullptr;
    it = cache.emplace(op.get(), has_rule ? &found->second : nullptr).first;
  }
  return it->second;
}

std::vector<RuleEntry> AllRules() {
  std::vector<RuleEntry> all;
  for (const auto& [name, entry] : Entries()) all.push_back(entry);
  return all;
}

bool HasRule(const ir::Call& call) {
  return FindRule(call.op()) != nullptr || KernelTable::IsKernelCall(call.op()) ||
         FindUserRule(call) != nullptr;
}

FactorRule RuleOf(const OpView& view) {
  const ir::Expr& op = view.call.op();
  if (const RuleText* rule = FindUserRule(view.call)) return ApplyRule(*rule, view);
  if (const RuleEntry* entry = FindRule(op)) {
    // A scalar has nothing to share out.
    bool is_loss = std::any_of(view.operands.begin(), view.operands.end(),
                               [](const ir::TensorType& type) { return type.ndim() != 0; });
    if (is_loss && entry->summary.replicated[0] != '\0') {
      WarnOnce(entry->op,
               std::string("operator ") + entry->op +
                   " keeps its operands and results replicated: " + entry->summary.replicated);
    }
    FactorRule rule = entry->rule(view);
    MarkUneven(*entry, view, &rule);
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

namespace {

// Operators that are about distribution: each of them states where its tensors are.
constexpr std::pair<const char*, const char*> kOfDistribution[] = {
    {"relax.ccl.", "on the worker's part"}, {"relax.dist.", "its type states both placements"}};

TVM_FFI_STATIC_INIT_BLOCK() {
  // The table: operator, family, parallel, reduced, whole, special, replicated.
  ffi::reflection::GlobalDef().def("distir.rules.List", [] {
    std::map<std::string, ffi::Array<ffi::String>> rows;
    for (const std::string& name : ir::ListOpNames()) {
      for (const auto& [prefix, special] : kOfDistribution) {
        if (name.rfind(prefix, 0) == 0)
          rows[name] = {name, "distribution", "", "", "", special, ""};
      }
    }
    for (const RuleEntry& entry : AllRules()) {
      const RuleSummary& summary = entry.summary;
      rows[entry.op] = {entry.op,      entry.family,    summary.parallel,  summary.reduced,
                        summary.whole, summary.special, summary.replicated};
    }
    ffi::Array<ffi::Array<ffi::String>> ordered;
    for (const auto& [name, row] : rows) ordered.push_back(row);
    return ordered;
  });
}

}  // namespace

}  // namespace rules
}  // namespace distir
