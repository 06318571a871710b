// Rewrites the products of functions to calls of a library.
#include "target/products/dispatch.h"

#include <string>

#include "ir/build.h"
#include "ir/report.h"
#include "ir/rewriter.h"

namespace distir::target {

namespace {

/*! \brief The text of an epilogue, its terms in the order of the arguments. */
std::string TextOf(const Epilogue& epilogue) {
  std::string text;
  const auto append = [&text](const std::string& word) {
    if (!text.empty()) text += " ";
    text += word;
  };
  if (epilogue.bias.defined()) append("bias");
  if (epilogue.addend.defined()) append("add");
  if (!epilogue.activation.empty()) append(epilogue.activation);
  return text;
}

class Dispatcher : public ir::FunctionRewriter {
 public:
  Dispatcher(const Products& products, const ProductLibrary& library)
      : products_(products), library_(library) {}

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (products_.IsDropped(var)) return;
    const Contraction* contraction = products_.Find(var);
    if (contraction == nullptr) return FunctionRewriter::RewriteVarBinding(var, value);
    ir::Count("products");
    ir::NodeArray<ir::Expr> arguments = {Rewrite(contraction->operands[0]),
                                         Rewrite(contraction->operands[1]),
                                         ir::MakeString(*Subscripts(*contraction))};
    if (library_.has_epilogues) AddEpilogue(contraction->epilogue, &arguments);
    Bind(var, ir::MakeOpCall(var.ty(), "relax.call_dps_packed",
                             {ir::MakeExternFunc(library_.builtin), ir::MakeTuple(arguments)}, {},
                             {var.ty()}));
  }

  void AddEpilogue(const Epilogue& epilogue, ir::NodeArray<ir::Expr>* arguments) {
    arguments->push_back(ir::MakeString(TextOf(epilogue)));
    for (const ir::Expr& term : {epilogue.bias, epilogue.addend}) {
      if (term.defined()) arguments->push_back(Rewrite(term));
    }
    if (!epilogue.empty()) ir::Count("epilogues");
  }

  const Products& products_;
  const ProductLibrary& library_;
};

}  // namespace

ir::IRModule DispatchProducts(const ir::IRModule& mod, const ProductLibrary& library) {
  return ir::RewriteFunctions(mod, [&library](const ir::Function& function) {
    const Products products(function, library);
    return products.empty() ? ir::Function()
                            : Dispatcher(products, library).RewriteFunction(function);
  });
}

}  // namespace distir::target
