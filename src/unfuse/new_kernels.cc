// Adds the kernels that a pass makes to the module, one for equal kernels.
#include "unfuse/new_kernels.h"

#include <algorithm>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"

namespace distir::unfuse {

NewKernels::NewKernels(const ir::IRModule& mod) : functions_(mod.functions()) {
  for (const auto& [name, function] : functions_) names_.Add(name.name());
}

ir::PrimFunc NewKernels::Find(const ir::GlobalVar& name) const {
  auto found = functions_.find(name);
  return found == functions_.end() ? ir::PrimFunc() : ir::PrimFunc::Cast((*found).second);
}

ir::GlobalVar NewKernels::Add(const std::string& name, const ir::PrimFunc& kernel) {
  ir::GlobalVar var = ir::MakeGlobalVar(names_.Fresh(name));
  ir::SetType(var, kernel.ty());
  made_.emplace_back(var, kernel);
  return var;
}

ir::IRModule NewKernels::AddedTo(const ir::IRModule& mod) const { return WithKernels(mod, made_); }

ir::IRModule WithKernels(const ir::IRModule& mod,
                         const std::vector<std::pair<ir::GlobalVar, ir::PrimFunc>>& kernels) {
  if (kernels.empty()) return mod;
  ir::FunctionMap functions = mod.functions();
  for (const auto& [name, kernel] : kernels) functions.Set(name, kernel);
  return ir::MakeModule(functions, mod.attrs(), mod.global_infos());
}

ir::PrimFunc KernelOf(const ir::Call& call, const NewKernels& kernels) {
  if (!ir::IsOp(call.op(), "relax.call_tir")) return ir::PrimFunc();
  auto name = ir::GlobalVar::Cast(call.args()[0]);
  auto operands = ir::Tuple::Cast(call.args()[1]);
  const ir::PrimFunc kernel = name.defined() ? kernels.Find(name) : ir::PrimFunc();
  if (!kernel.defined() || !operands.defined()) return ir::PrimFunc();
  auto results = ir::TupleType::Cast(call.ty());
  const size_t num_results = results.defined() ? results.fields().size() : 1;
  if (kernel.params().size() != operands.fields().size() + num_results) return ir::PrimFunc();
  const bool are_known =
      std::all_of(operands.fields().begin(), operands.fields().end(), [](const ir::Expr& operand) {
        auto type = ir::TensorType::Cast(rules::StripDistribution(operand.ty()));
        return ir::PrimType::Is(operand.ty()) || (type.defined() && ir::HasKnownShape(type));
      });
  return are_known ? kernel : ir::PrimFunc();
}

ffi::Array<ir::Expr> ShapeIn(const ir::Call& call, const ir::Var& var,
                             const std::vector<SizeOf>& sizes) {
  const ir::NodeArray<ir::Expr>& operands = ir::Tuple::Cast(call.args()[1]).fields();
  auto results = ir::TupleType::Cast(var.ty());
  ffi::Array<ir::Expr> shape;
  for (const SizeOf& size : sizes) {
    if (size.constant >= 0) {
      shape.push_back(ir::MakeInt(size.constant));
      continue;
    }
    ir::Type type = var.ty();
    if (size.param < operands.size()) {
      type = operands[size.param].ty();
    } else if (results.defined()) {
      type = results.fields()[size.param - operands.size()];
    }
    shape.push_back(ir::ShapeOf(ir::TensorType::Cast(rules::StripDistribution(type)))[size.dim]);
  }
  return shape;
}

ir::Call MakeKernelCall(const ir::Call& like, const ir::GlobalVar& kernel,
                        const ir::NodeArray<ir::Expr>& operands, const ir::Type& type) {
  ffi::Array<ir::Expr> args = like.args();
  args.Set(0, kernel);
  args.Set(1, ir::MakeTuple(operands));
  return ir::MakeCall(type, like.op(), args, like.attrs(), {type}, like.span());
}

}  // namespace distir::unfuse
