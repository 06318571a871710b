// Copies a function with new variables and sizes.
#include "ir/module/renew.h"

#include <unordered_map>

#include "ir/module/size_rewriter.h"

namespace distir::ir {

namespace {

class Renewal : public SizeRewriter {
 private:
  Expr ReplaceSize(const Var& size) override {
    auto [found, is_new] = renewed_.try_emplace(size.get());
    if (is_new) found->second = MakeVar(size.name(), size.ty(), false);
    return found->second;
  }

  std::unordered_map<const ffi::Object*, Expr> renewed_;
};

}  // namespace

Function RenewVars(const Function& function) { return Renewal().RewriteFunction(function); }

}  // namespace distir::ir
