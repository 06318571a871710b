/*!
 * \file ir/module/size_rewriter.h
 * \brief Base of passes that replace a function's symbolic sizes.
 */
#ifndef DISTIR_IR_MODULE_SIZE_REWRITER_H_
#define DISTIR_IR_MODULE_SIZE_REWRITER_H_

#include "ir/build.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"

namespace distir::ir {

class SizeRewriter : public FunctionRewriter {
 protected:
  /*! \brief Replacement of a size; null to keep it. */
  virtual Expr ReplaceSize(const Var& size) = 0;

  Var RewriteParam(const Var& param) override {
    // A number is a size by its own name.
    if (PrimType::Is(param.ty())) return Var::Cast(Replaced(param));
    const Type type = RewriteType(param.ty());
    return KeepsUnchanged() && type.same_as(param.ty()) ? param
                                                        : MakeVar(param.name(), type, false);
  }

  Type RewriteType(const Type& type) override {
    return MapDims(type, [this](const Expr& dim) { return Replaced(dim); });
  }

  Expr RewriteLeaf(const Expr& leaf) override {
    ShapeExpr shape = ShapeExpr::Cast(leaf);
    if (!shape.defined()) return Replaced(leaf);
    ffi::Array<Expr> values;
    bool changed = false;
    for (const Expr& value : shape.values()) {
      values.push_back(Replaced(value));
      changed = changed || !values.back().same_as(value);
    }
    return changed ? Expr(MakeShape(values)) : leaf;
  }

  Expr Rewrite(const Expr& expr) override {
    const bool is_size = Var::Is(expr) && PrimType::Is(expr.ty());  // as an argument
    return is_size ? Replaced(expr) : FunctionRewriter::Rewrite(expr);
  }

 private:
  Expr Replaced(const Expr& dim) {
    return SubstituteVars(dim, [this](const Var& size) { return ReplaceSize(size); });
  }
};

}  // namespace distir::ir
#endif  // DISTIR_IR_MODULE_SIZE_REWRITER_H_
