// Lists callee and result name of each call in the order of TVM's virtual machine.
#include "analysis/step_names.h"

#include <string>

#include "ir/build.h"
#include "rules/tir/rule.h"

namespace distir::analysis {

namespace {

using Rows = ffi::Array<ffi::Any>;

Rows RowsOf(const ir::SeqExpr& seq);

/*! \brief Function that the virtual machine calls for a call; empty if it calls none. */
std::string CalleeOf(const ir::Call& call) {
  if (ir::GlobalVar::Is(call.op())) return ir::GlobalVar::Cast(call.op()).name();
  if (ir::ExternFunc::Is(call.op())) return ir::ExternFunc::Cast(call.op()).name();
  if (rules::KernelTable::IsKernelCall(call.op())) {
    return ir::GlobalVar::Is(call.args()[0]) ? ir::GlobalVar::Cast(call.args()[0]).name() : "";
  }
  for (const char* op :
       {"relax.call_dps_packed", "relax.call_pure_packed", "relax.call_inplace_packed"}) {
    if (ir::IsOp(call.op(), op)) return ir::CalleeName(call);
  }
  const bool is_closure = ir::IsOp(call.op(), "relax.invoke_closure") ||
                          ir::IsOp(call.op(), "relax.invoke_pure_closure");
  return is_closure ? "vm.builtin.invoke_closure" : "";
}

void Add(const ir::Var& var, const ir::Expr& value, Rows* rows) {
  const ffi::String name(std::string(var.name()));
  if (auto branch = ir::If::Cast(value); branch.defined()) {
    rows->push_back(
        Rows{ffi::String(""), name, RowsOf(branch.true_branch()), RowsOf(branch.false_branch())});
    return;
  }
  const ir::Call call = ir::Call::Cast(value);
  if (!call.defined()) return;
  if (const std::string callee = CalleeOf(call); !callee.empty())
    rows->push_back(Rows{ffi::String(callee), name});
}

Rows RowsOf(const ir::SeqExpr& seq) {
  Rows rows;
  for (const ir::BindingBlock& block : seq.blocks()) {
    for (const ir::Binding& binding : block.bindings()) {
      auto bound = ir::VarBinding::Cast(binding);
      if (bound.defined()) Add(binding.var(), bound.value(), &rows);
    }
  }
  return rows;
}

}  // namespace

ffi::Map<ffi::String, ffi::Any> StepNames(const ir::IRModule& mod) {
  ffi::Map<ffi::String, ffi::Any> names;
  for (const auto& [name, function] : mod.functions()) {
    auto body = ir::Function::Cast(function);
    if (body.defined()) names.Set(ffi::String(std::string(name.name())), RowsOf(body.body()));
  }
  return names;
}

}  // namespace distir::analysis
