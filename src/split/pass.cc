#include "split/pass.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dialect/operators/annotation.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/module/names.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"
#include "split/combined_products.h"
#include "split/kernel_parts.h"
#include "split/sorted_rows.h"
#include "split/unrolled_sums.h"

namespace distir {
namespace split {

namespace {

constexpr const char* kPass = "SplitFused";

/*! \brief The type of a tensor whose sharding may be stated; null for anything else. */
ir::TensorType TensorOf(const ir::Expr& value) {
  return ir::TensorType::Cast(rules::StripDistribution(value.ty()));
}

/*! \brief The kernels of a module and their parts, each made on first use. */
class SplitKernels {
 public:
  struct Parts {
    KernelParts kernel;
    ir::GlobalVar reduction, epilogue;
  };

  explicit SplitKernels(const ir::IRModule& mod) : functions_(mod.functions()) {
    for (const auto& [name, function] : functions_) names_.Add(name.name());
  }

  /*! \brief The parts of what a call calls; null where it is called as it is. */
  const Parts* Find(const ir::Expr& callee) {
    auto name = ir::GlobalVar::Cast(callee);
    if (!name.defined()) return nullptr;
    auto [known, is_new] = known_.try_emplace(name.get());
    if (is_new) known->second = Make(name);
    return known->second ? &*known->second : nullptr;
  }

  const std::vector<std::pair<ir::GlobalVar, ir::PrimFunc>>& made() const { return made_; }

 private:
  std::optional<Parts> Make(const ir::GlobalVar& name) {
    auto found = functions_.find(name);
    auto kernel = found == functions_.end() ? ir::PrimFunc() : ir::PrimFunc::Cast((*found).second);
    auto parts = kernel.defined() ? SplitKernel(name.name(), kernel) : std::nullopt;
    if (!parts) return std::nullopt;
    const ir::GlobalVar reduction = Add(name.name() + "_reduction", parts->reduction);
    const ir::GlobalVar epilogue = Add(name.name() + "_epilogue", parts->epilogue);
    return Parts{std::move(*parts), reduction, epilogue};
  }

  ir::GlobalVar Add(const std::string& name, const ir::PrimFunc& kernel) {
    ir::GlobalVar var = ir::MakeGlobalVar(names_.Fresh(name));
    ir::SetType(var, kernel.ty());
    made_.emplace_back(var, kernel);
    return var;
  }

  ir::FunctionMap functions_;
  ir::FunctionNames names_;
  std::unordered_map<const ffi::Object*, std::optional<Parts>> known_;
  std::vector<std::pair<ir::GlobalVar, ir::PrimFunc>> made_;
};

class Splitter : public ir::FunctionRewriter {
 public:
  Splitter(const ir::Function& function, SplitKernels* kernels)
      : kernels_(*kernels), products_(function), rows_(function), sums_(function) {}

  /*! \brief The function; null where nothing in it is to be split. */
  ir::Function Run(const ir::Function& function) {
    bool any = !products_.empty() || !rows_.empty() || !sums_.empty();
    ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
      const ir::Call call = ir::BoundCall(binding);
      any = any || (call.defined() && FindParts(call) != nullptr);
    });
    return any ? RewriteFunction(function) : ir::Function();
  }

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (products_.IsUnused(var) || rows_.IsUnused(var) || sums_.IsUnused(var)) return;
    if (rows_.IsRestored(var)) return WriteAs("relax.take", "sorted rows", rows_, var);
    if (sums_.IsSum(var)) return WriteAs("relax.add", "unrolled sums", sums_, var);
    if (products_.IsSplit(var)) return SplitProduct(var);
    auto call = ir::Call::Cast(value);
    const SplitKernels::Parts* parts = call.defined() ? FindParts(call) : nullptr;
    if (parts == nullptr) return FunctionRewriter::RewriteVarBinding(var, value);
    SplitCall(var, call, *parts);
  }

  void SplitProduct(const ir::Var& var) {
    ir::Count("products");
    Credit(kPass, "relax.split", var);
    ffi::Array<ir::Expr> parts;
    for (const ir::Expr& part : products_.Write(
             var, [&](const ir::Expr& made) { return Emit(var.name(), Rewrite(made)); }))
      parts.push_back(Rewrite(part));
    if (ir::DataflowVar::Is(var)) {
      Replace(var, ir::MakeTuple(parts));
    } else {
      Bind(var, ir::MakeTuple(parts));
    }
  }

  template <typename Found>
  void WriteAs(const char* op, const char* what, const Found& found, const ir::Var& var) {
    ir::Count(what);
    Credit(kPass, op, var);
    Alias(var, Rewrite(found.Write(
                   var, [&](const ir::Expr& made) { return Emit(var.name(), Rewrite(made)); })));
  }

  const SplitKernels::Parts* FindParts(const ir::Call& call) {
    if (!ir::IsOp(call.op(), "relax.call_tir") || !ir::TensorType::Is(call.ty())) return nullptr;
    auto operands = ir::Tuple::Cast(call.args()[1]);
    if (!operands.defined()) return nullptr;
    const SplitKernels::Parts* parts = kernels_.Find(call.args()[0]);
    if (parts == nullptr || parts->kernel.num_operands != operands.fields().size()) return nullptr;
    const bool are_known = std::all_of(
        operands.fields().begin(), operands.fields().end(), [](const ir::Expr& operand) {
          const ir::TensorType type = TensorOf(operand);
          return ir::PrimType::Is(operand.ty()) || (type.defined() && ir::HasKnownShape(type));
        });
    return are_known ? parts : nullptr;
  }

  void SplitCall(const ir::Var& var, const ir::Call& call, const SplitKernels::Parts& parts) {
    ir::Count("kernels");
    Credit(kPass, "relax.call_tir", var);
    const ffi::Array<ir::Expr>& whole = ir::Tuple::Cast(call.args()[1]).fields();
    const ffi::Array<ir::Expr> operands = RewriteAll(whole);
    ffi::Array<ir::Expr> shape;
    for (const SizeOf& size : parts.kernel.shape) {
      const ir::Expr& tensor = size.param < whole.size() ? whole[size.param] : var;
      shape.push_back(ir::ShapeOf(TensorOf(tensor))[size.dim]);
    }
    ffi::Array<ir::Expr> of_reduction, of_epilogue;
    for (size_t i : parts.kernel.of_reduction) of_reduction.push_back(operands[i]);
    const ir::Expr reduced = Emit(
        var.name(),
        CallOf(parts.reduction, of_reduction, ir::MakeTensorType(shape, parts.kernel.dtype), call));
    of_epilogue.push_back(reduced);
    for (size_t i : parts.kernel.of_epilogue) of_epilogue.push_back(operands[i]);
    Bind(var, CallOf(parts.epilogue, of_epilogue, call.ty(), call), var.ty());
  }

  /*! \brief A call of a part. */
  ir::Expr CallOf(const ir::GlobalVar& kernel, const ffi::Array<ir::Expr>& operands,
                  const ir::Type& type, const ir::Call& whole) {
    ffi::Array<ir::Expr> args = whole.args();
    args.Set(0, kernel);
    args.Set(1, ir::MakeTuple(operands));
    return ir::MakeCall(type, whole.op(), args, whole.attrs(), {type}, whole.span());
  }

  SplitKernels& kernels_;
  const CombinedProducts products_;
  const SortedRows rows_;
  const UnrolledSums sums_;
};

bool StatesSharding(const ir::IRModule& mod) {
  bool any = false;
  for (const auto& [name, base] : mod.functions()) {
    const ir::Function function = ir::Function::Cast(base);
    if (!function.defined() || any) continue;
    for (const ir::Var& param : function.params()) any = any || dialect::HasDTensor(param.ty());
    ir::VisitBindings(function.body(), [&any](const ir::Binding& binding) {
      any = any || dialect::IsAnnotation(ir::BoundCall(binding)) ||
            dialect::HasDTensor(binding.var().ty());
    });
  }
  return any;
}

}  // namespace

ir::IRModule SplitFused(const ir::IRModule& mod) {
  if (!StatesSharding(mod)) return mod;
  SplitKernels kernels(mod);
  const ir::IRModule split =
      ir::RewriteFunctions(mod, [&kernels](const ir::Function& function) -> ir::Function {
        return Splitter(function, &kernels).Run(function);
      });
  if (kernels.made().empty()) return split;
  ir::FunctionMap functions = split.functions();
  for (const auto& [name, kernel] : kernels.made()) functions.Set(name, kernel);
  return ir::MakeModule(functions, split.attrs(), split.global_infos());
}

}  // namespace split
}  // namespace distir
