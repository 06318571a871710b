// Builds the call graph of a module and orders functions callees first.
#include "ir/module/call_graph.h"

#include <algorithm>
#include <utility>

#include "ir/rewriter.h"

namespace distir::ir {

namespace {

using VisitValue = std::function<void(const Expr&)>;

void ForEachValueOf(const SeqExpr& seq, const VisitValue& visit) {
  VisitBindings(seq, [&visit](const Binding& binding) {
    const VarBinding* bound = VarBinding::As(binding);
    if (bound == nullptr) return visit(MatchCast::As(binding)->value());
    visit(bound->value());
    if (const If* branch = If::As(bound->value())) {
      visit(branch->true_branch().body());
      visit(branch->false_branch().body());
    }
  });
  visit(seq.body());
}

/*! \brief Calls `visit` with each global variable in a value, and whether it is called there. */
void VisitGlobals(const Expr& value, const std::function<void(const GlobalVar&, bool)>& visit) {
  if (Var::Is(value)) return;
  if (const Call* call = Call::As(value)) {
    if (const GlobalVar* callee = GlobalVar::As(call->op())) visit(*callee, true);
    for (const Expr& arg : call->args()) VisitGlobals(arg, visit);
  } else if (const GlobalVar* gv = GlobalVar::As(value)) {
    visit(*gv, false);
  } else if (const Tuple* tuple = Tuple::As(value)) {
    for (const Expr& field : tuple->fields()) VisitGlobals(field, visit);
  } else if (const Function* local = Function::As(value)) {
    ForEachValueOf(local->body(), [&visit](const Expr& inner) { VisitGlobals(inner, visit); });
  }
}

}  // namespace

CallGraph::CallGraph(const IRModule& mod) {
  std::vector<Function> functions;
  for (const auto& [gv, base] : OrderedFunctions(mod)) {
    Function function = Function::Cast(base);
    if (!function.defined()) continue;
    Add(gv);
    functions.push_back(function);
  }
  for (size_t i = 0; i < functions.size(); ++i) {
    Read(i, [&](const VisitValue& visit) { ForEachValueOf(functions[i].body(), visit); });
  }
}

void CallGraph::Add(const GlobalVar& name) {
  number_of_.emplace(name.get(), entries_.size());
  entries_.push_back({name, {}, {}});
}

void CallGraph::Read(size_t function, const ForEachValue& values) {
  std::vector<size_t>& callees = entries_[function].callees;
  values([&](const Expr& value) {
    VisitGlobals(value, [&](const GlobalVar& gv, bool is_called) {
      const std::optional<size_t> found = Find(gv);
      if (!found) return;
      Entry& used = entries_[*found];
      if (!is_called) {
        used.is_value = true;
      } else if (used.callers.empty() || used.callers.back() != function) {
        used.callers.push_back(function);
        callees.push_back(*found);
      }
    });
  });
}

std::optional<size_t> CallGraph::Find(const Expr& callee) const {
  auto found = number_of_.find(callee.get());
  if (found == number_of_.end()) return std::nullopt;
  return found->second;
}

std::vector<size_t> CallGraph::CalleesFirst() const {
  struct Open {
    size_t function;
    size_t next;  // of its callees
  };
  std::vector<size_t> order;
  std::vector<bool> is_known(size());
  std::vector<Open> path;  // not the call stack: calls may be nested as deep as a program is long
  for (size_t first = 0; first < size(); ++first) {
    if (is_known[first]) continue;
    is_known[first] = true;
    path.push_back({first, 0});
    while (!path.empty()) {
      Open& open = path.back();
      const std::vector<size_t>& callees = entries_[open.function].callees;
      if (open.next == callees.size()) {
        order.push_back(open.function);
        path.pop_back();
        continue;
      }
      const size_t callee = callees[open.next++];
      if (is_known[callee]) continue;
      is_known[callee] = true;
      path.push_back({callee, 0});
    }
  }
  return order;
}

std::vector<bool> CallGraph::Spread(std::vector<bool> of, std::vector<size_t> Entry::* next) const {
  std::vector<size_t> pending;
  for (size_t i = 0; i < size(); ++i) {
    if (of[i]) pending.push_back(i);
  }
  while (!pending.empty()) {
    const size_t from = pending.back();
    pending.pop_back();
    for (size_t reached : entries_[from].*next) {
      if (of[reached]) continue;
      of[reached] = true;
      pending.push_back(reached);
    }
  }
  return of;
}

std::vector<bool> CallGraph::WithCallers(std::vector<bool> of) const {
  return Spread(std::move(of), &Entry::callers);
}

std::vector<bool> CallGraph::WithCallees(std::vector<bool> of) const {
  return Spread(std::move(of), &Entry::callees);
}

void CallGraph::SpreadToCallers(
    const std::function<bool(size_t caller, size_t callee)>& merge) const {
  // Taken from the back, so that each callee is complete before its callers, recursion aside.
  std::vector<size_t> pending = CalleesFirst();
  std::reverse(pending.begin(), pending.end());
  while (!pending.empty()) {
    const size_t callee = pending.back();
    pending.pop_back();
    for (size_t caller : entries_[callee].callers) {
      if (merge(caller, callee)) pending.push_back(caller);
    }
  }
}

bool IsPublic(const BaseFunc& function) {
  return GetAttr(function.attrs(), "global_symbol") != nullptr;
}

}  // namespace distir::ir
