// Splits calls of kernels with an epilogue into two calls.
#include "unfuse/epilogues.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "ir/build.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "unfuse/kernel_parts.h"
#include "unfuse/new_kernels.h"
#include "unfuse/pass.h"

namespace distir::unfuse {

namespace {

/*! \brief The kernels of a module and their parts, each made on first use. */
class PartsTable {
 public:
  struct Parts {
    KernelParts kernel;
    ir::GlobalVar reduction, epilogue;
  };

  explicit PartsTable(const ir::IRModule& mod) : kernels_(mod) {}

  /*! \brief The parts of what a call calls; null where it is called as it is. */
  const Parts* Find(const ir::Call& call) {
    const ir::PrimFunc kernel = KernelOf(call, kernels_);
    if (!kernel.defined() || !ir::TensorType::Is(call.ty())) return nullptr;
    auto [known, is_new] = known_.try_emplace(kernel.get());
    if (is_new) known->second = Make(ir::GlobalVar::Cast(call.args()[0]).name(), kernel);
    return known->second ? &*known->second : nullptr;
  }

  const NewKernels& kernels() const { return kernels_; }

 private:
  std::optional<Parts> Make(const std::string& name, const ir::PrimFunc& kernel) {
    auto parts = SplitKernel(name, kernel);
    if (!parts) return std::nullopt;
    const ir::GlobalVar reduction = kernels_.Add(name + "_reduction", parts->reduction);
    const ir::GlobalVar epilogue = kernels_.Add(name + "_epilogue", parts->epilogue);
    return Parts{std::move(*parts), reduction, epilogue};
  }

  NewKernels kernels_;
  std::unordered_map<const ffi::Object*, std::optional<Parts>> known_;
};

class Splitter : public ir::FunctionRewriter {
 public:
  explicit Splitter(PartsTable* parts) : parts_(*parts) {}

  /*! \brief The function; null where nothing in it is to be split. */
  ir::Function Run(const ir::Function& function) {
    bool any = false;
    ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
      const ir::Call call = ir::BoundCall(binding);
      any = any || (call.defined() && parts_.Find(call) != nullptr);
    });
    return any ? RewriteFunction(function) : ir::Function();
  }

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    auto call = ir::Call::Cast(value);
    const PartsTable::Parts* parts = call.defined() ? parts_.Find(call) : nullptr;
    if (parts == nullptr) return FunctionRewriter::RewriteVarBinding(var, value);
    ir::Count("kernels");
    Credit(kPass, "relax.call_tir", var);
    const KernelParts& kernel = parts->kernel;
    const ffi::Array<ir::Expr> operands = RewriteAll(ir::Tuple::Cast(call.args()[1]).fields());
    ffi::Array<ir::Expr> of_reduction, of_epilogue;
    for (size_t i : kernel.of_reduction) of_reduction.push_back(operands[i]);
    const ir::Type type = ir::MakeTensorType(ShapeIn(call, var, kernel.shape), kernel.dtype);
    of_epilogue.push_back(
        Emit(var.name(), MakeKernelCall(call, parts->reduction, of_reduction, type)));
    for (size_t i : kernel.of_epilogue) of_epilogue.push_back(operands[i]);
    Bind(var, MakeKernelCall(call, parts->epilogue, of_epilogue, call.ty()), var.ty());
  }

  PartsTable& parts_;
};

}  // namespace

ir::IRModule SplitEpilogues(const ir::IRModule& mod) {
  PartsTable parts(mod);
  const ir::IRModule split = ir::RewriteFunctions(
      mod, [&parts](const ir::Function& function) { return Splitter(&parts).Run(function); });
  return parts.kernels().AddedTo(split);
}

}  // namespace distir::unfuse
