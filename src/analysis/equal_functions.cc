// Finds functions of SPMD programs that are equal up to names and communication partners, by
// structural comparison of an abstracted copy.
#include "analysis/equal_functions.h"

#include <algorithm>
#include <utility>

#include "abi/builtin.h"
#include "dialect/operators/collective_note.h"
#include "ir/build.h"
#include "ir/packed_function.h"
#include "ir/rewriter.h"

namespace distir::analysis {

namespace {

bool IsText(const std::string& text) { return !text.empty() && (text[0] == '[' || text[0] == '{'); }

/*! \brief Attributes that affect how a function is compiled, without those on its origin. */
ir::Node CompiledAttrs(const ir::Node& attrs, const std::string& name) {
  ir::Node kept = attrs;
  if (auto dict = ir::DictAttrs::Cast(attrs); dict.defined()) {
    for (const auto& [key, value] : dict.dict()) {
      const std::string text = std::string(key);
      if (text.rfind("distir.", 0) == 0 || text == "num_input")
        kept = ir::WithAttr(kept, text.c_str(), ffi::Any());
      if (text == "global_symbol") kept = ir::WithAttr(kept, text.c_str(), ffi::String(name));
    }
  }
  return kept;
}

/*! \brief True if TVM's passes treat a function alike whoever calls it. */
bool StandsAlone(const ir::Function& function) {
  bool is_simple = true;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    auto bound = ir::VarBinding::Cast(binding);
    is_simple = is_simple && bound.defined() && !ir::If::Is(bound.value()) &&
                !ir::Function::Is(bound.value());
  });
  if (!is_simple || ir::IsPublic(function)) return is_simple;
  const auto uses = ir::CountUses(function);
  return std::all_of(function.params().begin(), function.params().end(), [&](const ir::Var& param) {
    return !ir::TupleType::Is(param.ty()) && uses.count(param.get()) > 0;
  });
}

std::vector<std::string> VariablesOf(const ir::Function& function) {
  std::vector<std::string> names;
  for (const ir::Var& param : function.params()) names.emplace_back(param.name());
  ir::VisitBindings(function.body(),
                    [&](const ir::Binding& binding) { names.emplace_back(binding.var().name()); });
  return names;
}

/*! \brief A function that TVM cannot look into, in place of one that is known. */
ir::Function Opaque(const ir::Function& function) {
  ffi::Array<ir::Var> params;
  ffi::Array<ir::Expr> args;
  for (const ir::Var& param : function.params()) {
    params.push_back(ir::MakeVar(param.name(), param.ty(), false));
    args.push_back(params.back());
  }
  const ir::Expr callee = ir::MakeExternFunc("known");
  ir::Expr call;
  if (function.is_pure()) {
    ffi::Array<ir::Expr> all = {callee};
    all.insert(all.end(), args.begin(), args.end());
    call =
        ir::MakeOpCall(function.ret_ty(), "relax.call_pure_packed", all, {}, {function.ret_ty()});
  } else {
    call = ir::MakeCall(function.ret_ty(), callee, args, ir::Node(), {function.ret_ty()});
  }
  const ir::Var result = ir::MakeVar("result", function.ret_ty(), false);
  const ir::SeqExpr body = ir::MakeSeq({ir::MakeBlock({ir::MakeBinding(result, call)}, false)},
                                       result, function.ret_ty());
  return ir::MakeFunction(params, body, function.ret_ty(), function.is_pure(), function.attrs());
}

}  // namespace

/*! \brief Writes a function without its devices. */
class EqualFunctions::Abstraction : public ir::FunctionRewriter {
 public:
  /*! \param known Stand-ins for the functions of the module that were seen already. */
  Abstraction(EqualFunctions* all, const ir::IRModule& mod,
              const std::unordered_map<const ffi::Object*, ir::GlobalVar>& known)
      : all_(*all), functions_(mod.functions()), known_(known) {}

  struct Kernel {
    ir::GlobalVar name, stands_for;
  };
  std::vector<std::string> communications;
  ffi::Array<ffi::Any> notes;
  std::unordered_map<const ffi::Object*, Kernel> kernels;  // by name in the module

 private:
  ir::Expr Rewrite(const ir::Expr& expr) override {
    const ir::Call call = ir::Call::Cast(expr);
    if (!call.defined()) return FunctionRewriter::Rewrite(expr);
    is_collective_ = ir::CalleeName(call).compare(0, abi::kRuntime.size(), abi::kRuntime) == 0;
    const ir::Call rewritten = ir::Call::Cast(FunctionRewriter::Rewrite(expr));
    is_collective_ = false;
    if (!ir::GlobalVar::Is(call.op()) && !ir::ExternFunc::Is(call.op())) return rewritten;
    return ir::MakeCall(rewritten.ty(), RewriteLeaf(call.op()), rewritten.args(), rewritten.attrs(),
                        rewritten.ty_args());
  }

  ir::Expr RewriteLeaf(const ir::Expr& leaf) override {
    if (auto text = ir::StringImm::Cast(leaf);
        is_collective_ && text.defined() && IsText(text.value())) {
      return ir::MakeString(PlaceOf(text.value()));
    }
    if (auto packed = ir::ExternFunc::Cast(leaf); packed.defined()) return WithPlace(packed);
    const ir::GlobalVar name = ir::GlobalVar::Cast(leaf);
    if (!name.defined()) return leaf;
    if (auto known = known_.find(name.get()); known != known_.end()) return known->second;
    auto [kernel, is_new] = kernels.emplace(name.get(), Kernel());
    if (is_new) kernel->second = {name, all_.NameOfKernel(name, functions_.at(name))};
    return kernel->second.stands_for;
  }

  /*! \brief A packed function whose note, if it has one, is only the place of the note. */
  ir::ExternFunc WithPlace(const ir::ExternFunc& function) {
    const ffi::Any note = ir::GetAttr(function, dialect::kNoteAttr);
    if (note == nullptr) return function;
    notes.push_back(note);
    return dialect::WithNote(function, static_cast<int64_t>(notes.size()) - 1);
  }

  /*! \brief "[2]" or "{2}" in place of the groups or the plan that are the third to be met. */
  std::string PlaceOf(const std::string& text) {
    auto found = std::find(communications.begin(), communications.end(), text);
    const auto place = std::to_string(found - communications.begin());
    if (found == communications.end()) communications.push_back(text);
    return text[0] == '[' ? "[" + place + "]" : "{" + place + "}";
  }

  EqualFunctions& all_;
  const ir::FunctionMap functions_;
  const std::unordered_map<const ffi::Object*, ir::GlobalVar>& known_;
  bool is_collective_ = false;
};

ir::GlobalVar EqualFunctions::NameOfKernel(const ir::GlobalVar& name, const ir::BaseFunc& kernel) {
  const size_t number = kernels_.Find(kernel);
  if (number == kernel_names_.size()) {
    kernel_names_.push_back(NewName(name.name()));
    ir::SetType(kernel_names_.back(), name.ty());
  }
  return kernel_names_[number];
}

ir::GlobalVar EqualFunctions::NewName(const std::string& text) {
  std::string name = text;
  for (int number = 1; !taken_.insert(name).second; ++number)
    name = text + "_" + std::to_string(number);
  return ir::MakeGlobalVar(name);
}

std::optional<FunctionsOnDevices> EqualFunctions::Add(const ir::IRModule& mod) {
  const ir::CallGraph calls(mod);
  FunctionsOnDevices found;
  ir::FunctionMap others;
  std::unordered_map<const ffi::Object*, ir::GlobalVar> known;  // by name in the module
  for (size_t number : calls.CalleesFirst()) {
    const ir::GlobalVar& name = calls[number].name;
    const ir::Function function = ir::Function::Cast(mod.functions().at(name));
    if (calls[number].is_value || !StandsAlone(function)) return std::nullopt;
    Callees callees;
    for (size_t callee : calls[number].callees) {
      const ir::GlobalVar& called = calls[callee].name;
      auto stands_for = known.find(called.get());
      if (stands_for == known.end()) return std::nullopt;
      // With two equal callees, a call could not be mapped back to one of them.
      if (!callees.emplace(stands_for->second.name(), called.name()).second) return std::nullopt;
    }
    Abstraction abstraction(this, mod, known);
    const ir::Function body = abstraction.RewriteFunction(function);
    // Attributes are compared, so the name in them comes behind.
    const ir::Function compared =
        ir::MakeFunction(body.params(), body.body(), body.ret_ty(), body.is_pure(),
                         CompiledAttrs(function.attrs(), ""));
    const size_t like = functions_.Find(compared);
    if (like == names_.size()) {
      names_.push_back(NewName("function_" + std::to_string(like)));
      ffi::Array<ir::Type> params;
      for (const ir::Var& param : body.params()) params.push_back(param.ty());
      ir::SetType(names_.back(), ir::MakeFuncType(params, body.ret_ty(), body.is_pure()));
      others.Set(names_.back(),
                 ir::MakeFunction(body.params(), body.body(), body.ret_ty(), body.is_pure(),
                                  CompiledAttrs(function.attrs(), names_.back().name())));
      for (const auto& [_, kernel] : abstraction.kernels)
        others.Set(kernel.stands_for, mod.functions().at(kernel.name));
      for (size_t callee : calls[number].callees) {
        const ir::GlobalVar& called = calls[callee].name;
        if (const ir::GlobalVar& stands_for = known.at(called.get()); others.count(stands_for) == 0)
          others.Set(stands_for, Opaque(ir::Function::Cast(mod.functions().at(called))));
      }
    }
    known.emplace(name.get(), names_[like]);
    found.functions.push_back({name.name(), names_[like].name(),
                               std::move(abstraction.communications), abstraction.notes,
                               std::move(callees), VariablesOf(function)});
  }
  found.others = ir::MakeModule(others, ir::Node(), {});
  return found;
}

}  // namespace distir::analysis
