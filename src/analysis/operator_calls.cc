// Implements OutlineOperators and InlineOperators: one function for each distinct operator call,
// and back.
#include "analysis/operator_calls.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/structural_index.h"
#include "ir/build.h"
#include "ir/data_extents.h"
#include "ir/leaves.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "ir/tir_node.h"
#include "ir/tvm/functions.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir::analysis {

namespace ffi = tvm::ffi;

namespace {

bool IsLegalized(const ir::Expr& op) {
  if (!ir::Op::Is(op)) return false;
  // Operators are unique objects, never freed, so the pointer is a key.
  static thread_local std::unordered_map<const ffi::Object*, bool> cache;
  auto [known, is_new] = cache.emplace(op.get(), false);
  if (is_new) known->second = ir::functions::kOpGetAttr(op, "FLegalize") != nullptr;
  return known->second;
}

/*! \brief True for operators that passes before LegalizeOps write as kernels: it computes, and has
 * no legalisation. */
bool IsDispatched(const ir::Expr& op) {
  const rules::Operator* record = rules::FindOperator(op);
  return record != nullptr && record->rule != nullptr && !IsLegalized(op);
}

/*! \brief True if a type is one or several tensors whose sizes are all numbers. */
bool IsStatic(const ir::Type& type) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    return std::all_of(tuple.fields().begin(), tuple.fields().end(), IsStatic);
  }
  const ir::TensorType tensor = ir::TensorType::Cast(type);
  if (!tensor.defined() || !tensor.has_dtype() || !ir::ShapeExpr::Is(tensor.shape())) return false;
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(tensor);
  return std::all_of(shape.begin(), shape.end(),
                     [](const ir::Expr& size) { return ir::StaticDim(size) >= 0; });
}

/*! \brief Writes one call as a function of the variables in it. */
class Outliner {
 public:
  Outliner(const ir::Call& call, Outlined which) : is_all_(which == Outlined::kAll) {
    is_possible_ =
        (IsLegalized(call.op()) || (is_all_ && IsDispatched(call.op()))) && IsStatic(call.ty());
    ffi::Array<ir::Expr> args;
    for (const ir::Expr& arg : call.args()) {
      if (!is_possible_) return;
      args.push_back(Param(arg));
    }
    if (!is_possible_) return;
    const ir::Var result = ir::MakeVar("result", call.ty(), false);
    const ir::Call inner = ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args());
    const ir::SeqExpr body =
        ir::MakeSeq({ir::MakeBlock({ir::MakeBinding(result, inner)}, false)}, result, call.ty());
    const std::string name = ir::Op::Cast(call.op()).name();
    function_ = ir::MakeFunction(params_, body, call.ty(), true,
                                 ir::WithAttr(ir::Node(), kOperatorAttr, ffi::String(name)));
  }

  /*! \brief The function, or null where the call has to stay. */
  const ir::Function& function() const { return function_; }
  /*! \brief Arguments of the call. */
  const ir::NodeArray<ir::Expr>& arguments() const { return arguments_; }

 private:
  ir::Expr Param(const ir::Expr& expr) {
    const bool is_constant = ir::Constant::Is(expr) && !IsScalar(expr.ty());
    if (ir::Var::Is(expr) || (is_all_ && is_constant)) {
      is_possible_ = is_possible_ && IsStatic(expr.ty());
      auto [known, is_new] = param_of_.emplace(expr.get(), ir::Var());
      if (is_new) {
        known->second = ir::MakeVar("p" + std::to_string(params_.size()), expr.ty(), false);
        params_.push_back(known->second);
        arguments_.push_back(expr);
      }
      return known->second;
    }
    if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
      ffi::Array<ir::Expr> fields;
      for (const ir::Expr& field : tuple.fields()) fields.push_back(Param(field));
      return ir::MakeTuple(fields);
    }
    // Comparing large constants would take longer than legalising them again.
    if (ir::Constant::Is(expr)) {
      is_possible_ = is_possible_ && !is_constant;
    } else if (auto shape = ir::ShapeExpr::Cast(expr); shape.defined()) {
      for (const ir::Expr& size : shape.values()) is_possible_ &= ir::StaticDim(size) >= 0;
    } else {
      bool has_variables = false;
      ir::VisitUses(expr, [&](const ir::Var&) { has_variables = true; });
      if (auto type = ir::PrimType::Cast(expr.ty()); type.defined())
        has_variables = has_variables || !(ir::IntImm::Is(expr) || ir::FloatImm::Is(expr));
      is_possible_ = is_possible_ && !has_variables;
    }
    return expr;
  }

  static bool IsScalar(const ir::Type& type) {
    const ir::TensorType tensor = ir::TensorType::Cast(type);
    return !tensor.defined() || (IsStatic(type) && ir::ShapeOf(tensor).empty());
  }

  const bool is_all_;
  bool is_possible_ = true;
  std::unordered_map<const ffi::Object*, ir::Var> param_of_;
  ffi::Array<ir::Var> params_;
  ir::NodeArray<ir::Expr> arguments_;
  ir::Function function_;
};

/*! \brief Functions that are different from each other. */
class DistinctFunctions {
 public:
  explicit DistinctFunctions(const ir::IRModule& mod) {
    for (const auto& [name, function] : mod.functions()) names_.Add(name.name());
  }

  const ir::GlobalVar& Find(const ir::Function& function) {
    const size_t number = index_.Find(function);
    if (number < found_.size()) return found_[number];
    const ir::GlobalVar name = ir::MakeGlobalVar(names_.Fresh("operator"));
    ffi::Array<ir::Type> params;
    for (const ir::Var& param : function.params()) params.push_back(param.ty());
    ir::SetType(name, ir::MakeFuncType(params, function.ret_ty(), true));
    found_.push_back(name);
    all_.Set(name, function);
    return found_.back();
  }

  const ir::FunctionMap& all() const { return all_; }

 private:
  ir::FunctionNames names_;
  StructuralIndex index_;
  std::vector<ir::GlobalVar> found_;  // by number
  ir::FunctionMap all_;
};

/*! \brief True if TVM's kernels of a call find out its extents, which a cast in the function that
 * calls them names: then each call needs names of its own. */
bool FindsExtents(const ir::Call& call) {
  bool finds = ir::HasDataExtent(call);
  ir::ForEachLeaf(call.ty(), [&](const ir::Type& leaf) {
    const auto type = ir::TensorType::Cast(leaf);
    finds = finds || (type.defined() && !ir::HasKnownShape(type));
  });
  return finds;
}

class OutliningRewriter : public ir::FunctionRewriter {
 public:
  OutliningRewriter(DistinctFunctions* distinct, Outlined which)
      : distinct_(*distinct), which_(which) {}

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (const ir::Call call = ir::Call::Cast(value);
        call.defined() && ir::Op::Is(call.op()) && !FindsExtents(call)) {
      const Outliner outliner(call, which_);
      if (outliner.function().defined()) {
        const ir::GlobalVar& name = distinct_.Find(outliner.function());
        Bind(var, ir::MakeCall(call.ty(), name, RewriteAll(outliner.arguments())));
        return;
      }
    }
    FunctionRewriter::RewriteVarBinding(var, value);
  }

  DistinctFunctions& distinct_;
  const Outlined which_;
};

using FunctionOf = std::unordered_map<const ffi::Object*, ir::Function>;

class InliningRewriter : public ir::FunctionRewriter {
 public:
  explicit InliningRewriter(const FunctionOf& outlined) : outlined_(outlined) {}

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    const ir::Call call = ir::Call::Cast(value);
    auto found = call.defined() ? outlined_.find(call.op().get()) : outlined_.end();
    if (found == outlined_.end()) return FunctionRewriter::RewriteVarBinding(var, value);
    const ir::Function& function = found->second;
    for (size_t i = 0; i < function.params().size(); ++i)
      Replace(function.params()[i], Rewrite(call.args()[i]));
    const ir::Expr result = function.body().body();
    bool is_bound = false;
    for (const ir::BindingBlock& block : function.body().blocks()) {
      for (const ir::Binding& binding : block.bindings()) {
        const ir::Expr inner = Rewrite(ir::VarBinding::Cast(binding).value());
        if (binding.var().same_as(result)) {
          is_bound = true;
          Bind(var, inner);
        } else {
          Replace(binding.var(), Emit(var.name(), inner));
        }
      }
    }
    if (!is_bound) Bind(var, Rewrite(result));
  }

  const FunctionOf& outlined_;
};

}  // namespace

ir::IRModule OutlineOperators(const ir::IRModule& mod, Outlined which) {
  DistinctFunctions distinct(mod);
  const ir::IRModule outlined = ir::RewriteFunctions(mod, [&](const ir::Function& function) {
    return OutliningRewriter(&distinct, which).RewriteFunction(function);
  });
  ir::FunctionMap functions = outlined.functions();
  for (const auto& [name, function] : distinct.all()) functions.Set(name, function);
  return ir::MakeModule(functions, mod.attrs(), mod.global_infos());
}

ir::IRModule InlineOperators(const ir::IRModule& mod) {
  FunctionOf outlined;
  ir::FunctionMap others;
  for (const auto& [name, function] : mod.functions()) {
    if (ir::GetAttr(function.attrs(), kOperatorAttr) != nullptr) {
      outlined.emplace(name.get(), ir::Function::Cast(function));
    } else {
      others.Set(name, function);
    }
  }
  return ir::RewriteFunctions(ir::MakeModule(others, mod.attrs(), mod.global_infos()),
                              [&](const ir::Function& function) {
                                return InliningRewriter(outlined).RewriteFunction(function);
                              });
}

}  // namespace distir::analysis
