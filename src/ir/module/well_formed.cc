// Checks that the Relax functions of a module are well formed; errors name function and variable.
#include "ir/module/well_formed.h"

#include <tvm/ffi/error.h>

#include <utility>
#include <vector>

#include "ir/rewriter.h"
#include "ir/tvm/view_definition.h"
#include "support/pointer_map.h"

namespace distir::ir {

namespace {

/*! \brief True if a type is TVM's placeholder of one that has not been inferred. */
bool IsMissing(const Type& type) {
  return !type.defined() || type->type_index() == Type::GetKind().type_index();
}

bool HasDTensor(const Type& type) {
  if (DTensorType::Is(type)) return true;
  if (auto tuple = TupleType::Cast(type); tuple.defined()) {
    for (const Type& field : tuple.fields()) {
      if (HasDTensor(field)) return true;
    }
  }
  return false;
}

/*! \brief Counts the values of a type, each type that tuples share once. */
class LeafCounter {
 public:
  double Count(const Type& type) {
    auto tuple = TupleType::Cast(type);
    if (!tuple.defined()) return 1;
    if (const double* known = counts_.Find(type.get())) return *known;
    double count = 0;
    for (const Type& field : tuple.fields()) count += Count(field);
    counts_[type.get()] = count;
    return count;
  }

 private:
  PointerMap<double> counts_;
};

class FunctionCheck {
 public:
  FunctionCheck(const IRModule& mod, const std::string& pass, const std::string& name)
      : mod_(mod), pass_(pass), name_(name) {}

  void Run(const Function& function) {
    for (const Var& param : function.params()) Define(param);
    CheckSeq(function.body(), nullptr);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    std::string advice = "; a pass that ran before has left the function so";
    if (has_dtensors_) {
      advice +=
          ". Passes of TVM that rewrite functions with DTensors often do: run them before "
          "PropagateSharding or after LowerDistIR";
    }
    TVM_FFI_THROW(ValueError) << pass_ << ": " << Place() << " in `" << name_ << "` " << what
                              << advice;
  }

  [[noreturn]] void FailByEffects(const std::string& callee) const {
    TVM_FFI_THROW(ValueError) << pass_ << ": " << Place() << " in `" << name_ << "` calls "
                              << callee
                              << ", which has effects, in a dataflow block; leave passes such as "
                              << "relax.transform.CallTIRRewrite to dx.build, or run "
                              << "relax.transform.ToNonDataflow before them";
  }

  std::string Place() const {
    return place_ == nullptr ? "the result" : "`" + static_cast<std::string>(place_->name()) + "`";
  }

  void Define(const Var& var) {
    place_ = &var;
    has_dtensors_ = has_dtensors_ || HasDTensor(var.ty());
    if (IsMissing(var.ty())) Fail("has no type");
    if (std::exchange(visible_[var.get()], true)) Fail("is bound twice");
    scope_.push_back(var.get());
  }

  /*! \brief Takes away what was defined since there were `size` visible variables; with
   * `only_dataflow`, what a dataflow block keeps for itself. */
  void EndScope(size_t size, bool only_dataflow) {
    size_t kept = size;
    for (size_t i = size; i < scope_.size(); ++i) {
      if (only_dataflow && !DataflowVar::GetKind().Matches(scope_[i])) {
        scope_[kept++] = scope_[i];
      } else {
        visible_[scope_[i]] = false;
      }
    }
    scope_.resize(kept);
  }

  /*! \brief `result` is the variable that the sequence is for, null where that is the function. */
  void CheckSeq(const SeqExpr& seq, const Var* result) {
    const size_t outer = scope_.size();
    for (const BindingBlock& block : seq.blocks()) {
      const size_t size = scope_.size();
      in_dataflow_ = DataflowBlock::Is(block);
      for (const Binding& binding : block.bindings()) CheckBinding(binding);
      if (in_dataflow_) EndScope(size, true);
      in_dataflow_ = false;
    }
    place_ = result;
    CheckArgument(seq.body());
    EndScope(outer, false);
  }

  void CheckBinding(const Binding& binding) {
    const Var& var = binding.var();
    place_ = &var;
    if (const MatchCast* cast = MatchCast::As(binding)) {
      CheckValue(var, cast->value());
    } else {
      CheckValue(var, VarBinding::As(binding)->value());
    }
    Define(var);
  }

  void CheckValue(const Var& var, const Expr& value) {
    if (const Call* call = Call::As(value)) {
      CheckCall(*call);
    } else if (const If* branch = If::As(value)) {
      CheckArgument(branch->cond());
      CheckSeq(branch->true_branch(), &var);
      CheckSeq(branch->false_branch(), &var);
    } else if (!Function::Is(value)) {  // a local function, which passes that need none refuse
      CheckArgument(value);
    }
  }

  void CheckCall(const Call& call) {
    if (IsMissing(call.ty())) Fail("has no type");
    const Expr& callee = call.op();
    if (const GlobalVar* gv = GlobalVar::As(callee)) {
      CheckFunctionCall(call, *gv);
    } else if (IsOp(callee, "relax.memory.kill_tensor") ||
               IsOp(callee, "relax.memory.kill_storage") || IsOp(callee, "relax.vm.kill_object")) {
      const std::string op = Op::Cast(callee).name();
      TVM_FFI_THROW(ValueError)
          << pass_ << ": " << op << " in `" << name_ << "` ends the life of `" << NameOf(call)
          << "`, which passes that add uses do not see; leave relax.transform.KillAfterLastUse to "
          << "dx.build or tvm.compile, which run it last";
    } else if (!Op::Is(callee) && !ExternFunc::Is(callee)) {
      CheckArgument(callee);
    }
    for (const Expr& arg : call.args()) CheckArgument(arg);
  }

  static std::string NameOf(const Call& call) {
    auto var = call.args().empty() ? Var() : Var::Cast(call.args()[0]);
    return var.defined() ? static_cast<std::string>(var.name()) : "a value";
  }

  void CheckFunctionCall(const Call& call, const GlobalVar& gv) {
    auto callee = mod_.functions().find(gv);
    if (callee == mod_.functions().end())
      Fail("calls `" + gv.name() + "`, which is no function of the module");
    auto function = Function::Cast((*callee).second);
    // A kernel writes to its last argument.
    if (in_dataflow_ && !(function.defined() && function.is_pure()))
      FailByEffects("`" + gv.name() + "`");
    if (function.defined() && function.params().size() != call.args().size()) {
      Fail("calls `" + gv.name() + "` with " + std::to_string(call.args().size()) +
           " arguments, and it has " + std::to_string(function.params().size()) + " parameters");
    }
  }

  bool IsVisible(const Var& var) const {
    const bool* visible = visible_.Find(var.get());
    return visible != nullptr && *visible;
  }

  void CheckArgument(const Expr& expr) {
    if (const Var* var = Var::As(expr)) {
      const bool is_size = PrimType::Is(var->ty());  // shapes define symbolic variables
      if (!is_size && !IsVisible(*var)) {
        has_dtensors_ = has_dtensors_ || HasDTensor(var->ty());
        Fail("uses `" + static_cast<std::string>(var->name()) + "`, which is not defined there");
      }
    } else if (const Tuple* tuple = Tuple::As(expr)) {
      for (const Expr& field : tuple->fields()) CheckArgument(field);
    } else if (const TupleGetItem* item = TupleGetItem::As(expr)) {
      CheckArgument(item->tuple());
    } else if (const Call* call = Call::As(expr); call != nullptr && !PrimType::Is(call->ty())) {
      // A function that is lowered to the virtual machine is no longer in A-normal form.
      if (has_dtensors_)
        Fail("has a call within an expression, which relax.transform.Normalize would take apart");
      CheckCall(*call);
    }
  }

  const IRModule& mod_;
  const std::string& pass_;
  const std::string name_;
  const Var* place_ = nullptr;  // what is being checked; null: what the function gives
  bool has_dtensors_ = false;
  bool in_dataflow_ = false;
  PointerMap<bool> visible_;
  std::vector<const ffi::Object*> scope_;  // what is visible, in order of definition
};

}  // namespace

void CheckTuples(const GlobalVar& gv, const Function& function) {
  constexpr double kMost = 1 << 20;
  LeafCounter leaves;
  auto check = [&](const Var& var) {
    if (!var.ty().defined() || leaves.Count(var.ty()) <= kMost) return;
    TVM_FFI_THROW(ValueError) << "`" << var.name() << "` in `" << gv.name()
                              << "` is a tuple of more than a million values; a tuple of twice "
                              << "the same tuple has twice as many";
  };
  for (const Var& param : function.params()) check(param);
  VisitBindings(function.body(), [&](const Binding& binding) { check(binding.var()); });
}

void CheckWellFormed(const IRModule& mod, const std::string& pass) {
  for (const auto& [gv, base] : OrderedFunctions(mod)) {
    auto function = Function::Cast(base);
    if (!function.defined()) continue;
    CheckTuples(gv, function);
    FunctionCheck(mod, pass, gv.name()).Run(function);
  }
}

}  // namespace distir::ir
