// Holds the records of all operators, and lists them for Python.
#include "rules/operator.h"

#include <map>
#include <string>
#include <unordered_set>

#include "ir/rewriter.h"
#include "ir/tvm/registration.h"
#include "support/functions.h"
#include "support/pointer_map.h"

namespace distir::rules {

namespace {

std::map<std::string, Operator>& Records() {
  static std::map<std::string, Operator> records;
  return records;
}

void Enter(const char* family, const Summary& summary, Operator record) {
  record.family = family;
  record.summary = summary;
  const bool is_new = Records().emplace(record.name, record).second;
  TVM_FFI_ICHECK(is_new) << record.name << " is described twice";
}

}  // namespace

Operators::Operators(const char* family, const Summary& summary,
                     std::initializer_list<Operator> operators) {
  for (const Operator& record : operators) Enter(family, summary, record);
}

ReplicatedOperators::ReplicatedOperators(const char* family, const char* reason,
                                         std::initializer_list<const char*> names) {
  for (const char* name : names) Enter(family, {"", "", "", "", reason}, {name, ReplicateAll});
}

DescribedOperators::DescribedOperators(const char* family, const char* decomposed,
                                       std::initializer_list<const char*> names) {
  for (const char* name : names) Enter(family, {"", "", "", decomposed}, {name, nullptr});
}

const Operator* FindOperator(const ir::Expr& op) {
  if (!ir::Op::Is(op)) return nullptr;
  // Operators are unique objects, never freed, so the pointer is a key.
  static thread_local PointerMap<const Operator*> cache;
  if (const Operator* const* known = cache.Find(op.get())) return *known;
  auto found = Records().find(ir::Op::Cast(op).name());
  const bool has_rule = found != Records().end() && found->second.rule != nullptr;
  return cache[op.get()] = has_rule ? &found->second : nullptr;
}

std::vector<Operator> AllOperators() {
  std::vector<Operator> all;
  for (const auto& [name, record] : Records()) all.push_back(record);
  return all;
}

namespace {

// Operators that are about distribution: each of them states where its tensors are.
constexpr std::pair<const char*, const char*> kOfDistribution[] = {
    {"relax.ccl.", "on the worker's part"}, {"relax.dist.", "its type states both placements"}};

/*! \brief The name that Python knows it by; empty: it does not accumulate. */
const char* AccumulationName(Accumulation kind) {
  switch (kind) {
    case Accumulation::kNone:
      return "";
    case Accumulation::kProducts:
      return "products";
    case Accumulation::kSums:
      return "sums";
    case Accumulation::kScans:
      return "scans";
  }
  return "";
}

/*! \brief The operators of a way to accumulate, ordered by name. */
ffi::Array<ffi::String> AccumulatingOperators(const ffi::String& kind) {
  ffi::Array<ffi::String> names;
  for (const Operator& record : AllOperators()) {
    if (record.accumulation != Accumulation::kNone && kind == AccumulationName(record.accumulation))
      names.push_back(record.name);
  }
  return names;
}

/*! \brief True if a function calls one of some operators. Matching patterns takes much longer. */
bool CallsOperator(const ir::Function& function, const ffi::Array<ffi::String>& names) {
  std::unordered_set<std::string> wanted(names.begin(), names.end());
  bool found = false;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    if (found || !call.defined() || !ir::Op::Is(call.op())) return;
    found = wanted.count(ir::Op::Cast(call.op()).name()) != 0;
  });
  return found;
}

bool Accumulates(const ir::Call& call) {
  const Operator* record = FindOperator(call.op());
  if (record == nullptr || record->accumulation == Accumulation::kNone) return false;
  return record->accumulates == nullptr || record->accumulates(ViewCall(call, call.ty()));
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.rules.AccumulatingOperators", AccumulatingOperators)
      .def("distir.rules.CallsOperator", CallsOperator)
      .def("distir.rules.Accumulates", Accumulates);
  // The table: operator, family, parallel, reduced, needs replication, decomposed, replicated.
  support::Functions().def("distir.rules.List", [] {
    std::map<std::string, ffi::Array<ffi::String>> rows;
    for (const std::string& name : ir::ListOpNames()) {
      for (const auto& [prefix, decomposed] : kOfDistribution) {
        if (name.rfind(prefix, 0) == 0)
          rows[name] = {name, "distribution", "", "", "", decomposed, ""};
      }
    }
    for (const Operator& record : AllOperators()) {
      const Summary& summary = record.summary;
      rows[record.name] = {record.name,
                           record.family,
                           summary.parallel,
                           summary.reduced,
                           summary.needs_replication,
                           summary.decomposed,
                           summary.replicated};
    }
    ffi::Array<ffi::Array<ffi::String>> ordered;
    for (const auto& [name, row] : rows) ordered.push_back(row);
    return ordered;
  });
}

}  // namespace

}  // namespace distir::rules
