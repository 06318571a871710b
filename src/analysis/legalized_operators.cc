// Caches kernels that LegalizeOps made of operators, and writes them into later modules.
#include "analysis/legalized_operators.h"

#include <string>

#include "analysis/operator_calls.h"
#include "ir/build.h"
#include "ir/rewriter.h"

namespace distir::analysis {

namespace {

bool IsOperator(const ir::BaseFunc& function) {
  return ir::Function::Is(function) && ir::GetAttr(function.attrs(), kOperatorAttr) != nullptr;
}

}  // namespace

/*! \brief Calls kernels by the names that they have for all modules. */
class LegalizedOperators::Renaming : public ir::FunctionRewriter {
 public:
  Renaming(LegalizedOperators* all, const ir::IRModule& mod)
      : all_(*all), functions_(mod.functions()) {}

  std::vector<Kernel> kernels;

 private:
  ir::Expr RewriteLeaf(const ir::Expr& leaf) override {
    const ir::GlobalVar name = ir::GlobalVar::Cast(leaf);
    if (!name.defined()) return leaf;
    kernels.push_back(all_.KernelOf(name, functions_.at(name)));
    return kernels.back().first;
  }

  LegalizedOperators& all_;
  const ir::FunctionMap functions_;
};

const LegalizedOperators::Kernel& LegalizedOperators::KernelOf(const ir::GlobalVar& name,
                                                               const ir::BaseFunc& kernel) {
  const size_t number = kernels_.Find(kernel);
  if (number == distinct_.size()) {
    const ir::GlobalVar own = ir::MakeGlobalVar(name.name() + "_known" + std::to_string(number));
    ir::SetType(own, name.ty());
    distinct_.emplace_back(own, kernel);
  }
  return distinct_[number];
}

LegalizedOperators::Known& LegalizedOperators::Find(const ir::BaseFunc& function) {
  const size_t number = operators_.Find(function);
  if (number == known_.size()) known_.emplace_back();
  return known_[number];
}

ir::IRModule LegalizedOperators::WithKnown(const ir::IRModule& outlined) {
  ir::FunctionMap functions = outlined.functions();
  for (const auto& [name, function] : outlined.functions()) {
    if (!IsOperator(function)) continue;
    const Known& known = Find(function);
    if (!known.function.defined()) continue;
    functions.Set(name, known.function);
    for (const auto& [kernel, code] : known.kernels) functions.Set(kernel, code);
  }
  return ir::MakeModule(functions, outlined.attrs(), outlined.global_infos());
}

void LegalizedOperators::Learn(const ir::IRModule& outlined, const ir::IRModule& legalized) {
  for (const auto& [name, function] : outlined.functions()) {
    if (!IsOperator(function)) continue;
    Known& known = Find(function);
    if (known.function.defined()) continue;
    Renaming renaming(this, legalized);
    known.function = renaming.RewriteFunction(ir::Function::Cast(legalized.functions().at(name)));
    known.kernels = std::move(renaming.kernels);
  }
}

}  // namespace distir::analysis
