#include "rules/registry.h"

#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "ir/build.h"
#include "ir/pass.h"
#include "rules/tir_rule.h"

namespace distir {
namespace rules {

namespace {

std::map<std::string, RuleEntry>& Entries() {
  static std::map<std::string, RuleEntry> entries;
  return entries;
}

std::string CalleeName(const ir::Expr& op) {
  if (auto registered = ir::Op::Cast(op); registered.defined()) return registered.name();
  if (auto packed = ir::ExternFunc::Cast(op); packed.defined()) return packed.name();
  return ir::Print(op);
}

void WarnOnce(const std::string& name) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  std::lock_guard<std::mutex> lock(mutex);
  if (warned.insert(name).second) {
    ir::Warn("no sharding rule for operator " + name + ": its operands and results are replicated");
  }
}

}  // namespace

RuleTable::RuleTable(const char* family, std::initializer_list<RuleEntry> entries) {
  for (RuleEntry entry : entries) {
    entry.family = family;
    Entries()[entry.op] = entry;
  }
}

const RuleEntry* FindRule(const ir::Expr& op) {
  if (!ir::Op::Is(op)) return nullptr;
  // Operators are unique objects, never freed, so the pointer is a key.
  static thread_local std::unordered_map<const ffi::Object*, const RuleEntry*> cache;
  auto it = cache.find(op.get());
  if (it == cache.end()) {
    auto found = Entries().find(ir::Op::Cast(op).name());
    it = cache.emplace(op.get(), found == Entries().end() ? nullptr : &found->second).first;
  }
  return it->second;
}

std::vector<RuleEntry> AllRules() {
  std::vector<RuleEntry> all;
  for (const auto& [name, entry] : Entries()) all.push_back(entry);
  return all;
}

FactorRule RuleOf(const OpView& view) {
  if (const RuleEntry* entry = FindRule(view.call.op())) return entry->rule(view);
  if (KernelTable::IsKernelCall(view.call.op())) return RuleOfKernelCall(view);
  if (!view.operands.empty() || !view.results.empty()) WarnOnce(CalleeName(view.call.op()));
  return ReplicateAll(view);
}

namespace {

TVM_FFI_STATIC_INIT_BLOCK() {
  // The table as pairs of operator and family.
  ffi::reflection::GlobalDef().def("distir.rules.List", [] {
    ffi::Array<ffi::Array<ffi::String>> pairs;
    for (const RuleEntry& entry : AllRules()) pairs.push_back({entry.op, entry.family});
    return pairs;
  });
}

}  // namespace

}  // namespace rules
}  // namespace distir
