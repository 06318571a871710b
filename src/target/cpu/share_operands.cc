// ShareOperands: operands of large collectives get memory that other workers of the host can read.
//
//     alloc = R.builtin.alloc_tensor(R.shape([128, 512]), R.dtype("float32"), 0, R.str("global"))
//     Module.kernel(x, alloc)
//     _ = R.call_packed("distir.runtime.reduce_scatter", alloc, ..)
//     ->
//     alloc = R.call_packed("distir.runtime.new_tensor", R.shape([128, 512]), R.dtype(..), ..)
//
// Workers that are processes then work on each other's operands instead of sending them. An
// all-reduce writes to other members' results, so these are made there, too.
//
// Runs behind CallTIRRewrite, which makes the allocations.

#include <string>
#include <unordered_map>
#include <unordered_set>

#include "abi/collective.h"
#include "ir/build.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "target/cpu/collective_memory.h"
#include "target/cpu/passes.h"

namespace distir::target {

namespace ffi = tvm::ffi;

namespace {

/*! \brief The name of the builtin if a call is a redistribution within groups; else empty. */
std::string GroupBuiltinOf(const ir::Call& call) {
  ir::ExternFunc function = ir::ExternFunc::Cast(call.op());
  if (!function.defined()) return "";
  const abi::CollectiveRecord* record = abi::FindBuiltin(function.name());
  const bool is_in_groups =
      record != nullptr && record->family == abi::CollectiveFamily::kRedistribution &&
      record->members == abi::Members::kGroups && record->sends != abi::Sends::kNothing;
  return is_in_groups ? function.name() : "";
}

/*! \brief The allocations of a function that collectives see. */
class Operands {
 public:
  explicit Operands(const ir::Function& function) {
    ir::VisitBindings(function.body(), [this](const ir::Binding& binding) { Visit(binding); });
  }

  bool Contains(const ir::Var& var) const { return chosen_.count(var.get()) > 0; }
  bool any() const { return !chosen_.empty(); }

 private:
  void Visit(const ir::Binding& binding) {
    ir::VarBinding bound = ir::VarBinding::Cast(binding);
    if (!bound.defined()) return;
    ir::Call call = ir::Call::Cast(bound.value());
    if (!call.defined()) {
      if (ir::Var::Is(bound.value())) Alias(bound.var(), ir::Var::Cast(bound.value()));
    } else if (ir::IsOp(call.op(), "relax.reshape")) {
      if (ir::Var::Is(call.args()[0])) Alias(bound.var(), ir::Var::Cast(call.args()[0]));
    } else if (ir::IsOp(call.op(), "relax.builtin.alloc_tensor")) {
      if (IsLargeTensor(bound.var().ty())) allocations_.insert(bound.var().get());
    } else if (const std::string name = GroupBuiltinOf(call); !name.empty()) {
      Choose(call.args()[0]);
      if (name == abi::Builtin(abi::Collective::kAllReduce))
        Choose(call.args()[call.args().size() - 1]);
    }
  }

  void Alias(const ir::Var& var, const ir::Var& of) { sources_[var.get()] = SourceOf(of); }

  const ffi::Object* SourceOf(const ir::Expr& var) const {
    auto found = sources_.find(var.get());
    return found == sources_.end() ? var.get() : found->second;
  }

  void Choose(const ir::Expr& tensor) {
    const ffi::Object* source = SourceOf(tensor);
    if (allocations_.count(source) > 0) chosen_.insert(source);
  }

  std::unordered_map<const ffi::Object*, const ffi::Object*> sources_;
  std::unordered_set<const ffi::Object*> allocations_, chosen_;
};

class Placer : public ir::FunctionRewriter {
 public:
  explicit Placer(const Operands& operands) : operands_(operands) {}

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (!operands_.Contains(var)) return FunctionRewriter::RewriteVarBinding(var, value);
    ir::Count("operands");
    const ir::NodeArray<ir::Expr>& args = ir::Call::Cast(value).args();
    Bind(var, ir::MakeCall(var.ty(), ir::MakeExternFunc(abi::kRuntime + "new_tensor"),
                           {Rewrite(args[0]), args[1]}, ir::Node(), {var.ty()}));
  }

  const Operands& operands_;
};

}  // namespace

ir::IRModule ShareOperands(const ir::IRModule& mod) {
  return ir::RewriteFunctions(mod, [](const ir::Function& function) {
    Operands operands(function);
    return operands.any() ? Placer(operands).RewriteFunction(function) : ir::Function();
  });
}

}  // namespace distir::target
