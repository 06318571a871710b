// AppendInPlace: a parameter that is returned with more behind it is extended where it lies.
//
//     def decode(x, cache): .. longer = R.concat((cache, new), axis=1) .. return y, longer
//     ->
//     longer = R.call_pure_packed("distir.runtime.append", cache, new, 1, ..)
//
// The runtime leaves room behind the result, so that the next call, which has it as its parameter,
// writes there instead of copying all that came before.

#include <unordered_map>
#include <unordered_set>

#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "rules/factor/axes.h"
#include "target/cpu/passes.h"

namespace distir::target {

namespace ffi = tvm::ffi;

namespace {

constexpr const char* kAppend = "distir.runtime.append";

/*! \brief Bindings of a function that extend a parameter and are returned. */
class Appends {
 public:
  explicit Appends(const ir::Function& function) {
    for (const ir::Var& param : function.params()) params_.insert(param.get());
    for (const ir::BindingBlock& block : function.body().blocks()) {
      for (const ir::Binding& each : block.bindings()) {
        if (auto bound = ir::VarBinding::Cast(each); bound.defined())
          values_.emplace(bound.var().get(), bound.value());
      }
    }
    VisitReturned(function.body().body());
  }

  bool Contains(const ir::Var& var) const { return appends_.count(var.get()) > 0; }
  bool any() const { return !appends_.empty(); }

 private:
  void VisitReturned(const ir::Expr& value) {
    if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) VisitReturned(field);
      return;
    }
    const auto found = values_.find(value.get());
    if (found == values_.end()) return;
    if (ExtendsParameter(found->second)) {
      appends_.insert(value.get());
    } else if (ir::Var::Is(found->second) || ir::Tuple::Is(found->second)) {
      VisitReturned(found->second);
    }
  }

  bool ExtendsParameter(const ir::Expr& value) const {
    const auto call = ir::Call::Cast(value);
    if (!call.defined() || !ir::IsOp(call.op(), "relax.concat")) return false;
    const auto fields = ir::Tuple::Cast(call.args()[0]);
    if (!fields.defined() || fields.fields().size() != 2) return false;
    for (const ir::Expr& field : fields.fields()) {
      const auto type = ir::TensorType::Cast(field.ty());
      if (!type.defined() || type.ndim() < 1) return false;
    }
    return IsParameter(fields.fields()[0]);
  }

  bool IsParameter(const ir::Expr& value) const {
    if (params_.count(value.get()) > 0) return true;
    if (auto item = ir::TupleGetItem::Cast(value); item.defined()) return IsParameter(item.tuple());
    const auto found = values_.find(value.get());
    return found != values_.end() && IsParameter(found->second);
  }

  std::unordered_set<const ffi::Object*> params_;
  std::unordered_map<const ffi::Object*, ir::Expr> values_;
  std::unordered_set<const ffi::Object*> appends_;
};

class Appender : public ir::FunctionRewriter {
 public:
  explicit Appender(const Appends& appends) : appends_(appends) {}

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (!appends_.Contains(var)) return FunctionRewriter::RewriteVarBinding(var, value);
    const auto call = ir::Call::Cast(value);
    const auto fields = ir::Tuple::Cast(call.args()[0]).fields();
    const int rank = ir::TensorType::Cast(fields[0].ty()).ndim();
    // Without an axis, tensors of one dimension are joined.
    const int64_t axis = ir::attrs::kConcatAxis(call.attrs()).try_cast<int64_t>().value_or(0);
    ir::Count("appends");
    Bind(var, ir::MakeOpCall(var.ty(), "relax.call_pure_packed",
                             {ir::MakeExternFunc(kAppend), Rewrite(fields[0]), Rewrite(fields[1]),
                              ir::MakeInt(rules::NormalizeAxis(axis, rank))},
                             {}, {var.ty()}));
  }

  const Appends& appends_;
};

}  // namespace

ir::IRModule AppendInPlace(const ir::IRModule& mod) {
  return ir::RewriteFunctions(mod, [](const ir::Function& function) {
    const Appends appends(function);
    return appends.any() ? Appender(appends).RewriteFunction(function) : ir::Function();
  });
}

}  // namespace distir::target
