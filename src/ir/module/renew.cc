#include "ir/module/renew.h"

#include <unordered_map>

#include "ir/build.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"

namespace distir {
namespace ir {

namespace {

class Renewal : public FunctionRewriter {
 private:
  Var RewriteParam(const Var& param) override {
    return MakeVar(param.name(), RewriteType(param.ty()), false);
  }

  Type RewriteType(const Type& type) override {
    return MapDims(type, [this](const Expr& dim) { return Renewed(dim); });
  }

  Expr RewriteConstant(const Constant& constant) override { return constant; }

  Expr RewriteLeaf(const Expr& leaf) override {
    if (ShapeExpr shape = ShapeExpr::Cast(leaf); shape.defined()) {
      ffi::Array<Expr> values;
      for (const Expr& value : shape.values()) values.push_back(Renewed(value));
      return MakeShape(values);
    }
    return Renewed(leaf);
  }

  Expr Rewrite(const Expr& expr) override {
    // A symbolic size as an argument.
    const bool is_size = Var::Is(expr) && PrimType::Is(expr.ty());
    return is_size ? Renewed(expr) : FunctionRewriter::Rewrite(expr);
  }

  Expr Renewed(const Expr& dim) {
    return SubstituteVars(dim, [this](const Var& var) {
      auto [it, is_new] = renewed_.try_emplace(var.get());
      if (is_new) it->second = MakeVar(var.name(), var.ty(), false);
      return it->second;
    });
  }

  std::unordered_map<const ffi::Object*, Expr> renewed_;
};

}  // namespace

Function RenewVars(const Function& function) { return Renewal().RewriteFunction(function); }

}  // namespace ir
}  // namespace distir
