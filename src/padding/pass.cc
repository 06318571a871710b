// PadShards: pads dimensions that the number of shards does not divide to the next multiple.
#include "padding/pass.h"

#include <unordered_set>
#include <vector>

#include "ir/build.h"
#include "ir/module/call_graph.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "padding/dividing_sizes.h"
#include "padding/pad_function.h"
#include "rules/call/infer_type.h"
#include "rules/registry.h"
#include "rules/tir/rule.h"

namespace distir::padding {

namespace {

/*! \brief True if the grains of a tensor that a kernel takes or gives do not divide into its
 * shards.
 */
bool HasUnevenGrains(const ir::Var& var, const ir::Call& call, dialect::MeshTable* meshes,
                     rules::KernelTable* kernels) {
  if (!call.defined() || kernels->Find(call) == nullptr) return false;
  const rules::FactorRule rule =
      rules::RuleOf(rules::ViewCall(call, rules::StripDistribution(var.ty()), kernels));
  bool found = false;
  auto check = [&](const ir::Type& type, const std::vector<rules::TensorFactors>& tensors,
                   size_t* next) {
    std::vector<ir::DTensorType> types;
    dialect::CollectDTensorTypes(type, &types);
    for (const ir::DTensorType& each : types) {
      const rules::TensorFactors& factors = tensors[(*next)++];
      if (!each.defined()) continue;
      const mesh::Sharding& sharding = meshes->ShardingOf(each);
      for (size_t d = 0; d < sharding.dims.size(); ++d) {
        const rules::Factor* major = factors[d].empty() ? nullptr : &rule.factors[factors[d][0]];
        found = found || (major != nullptr && major->is_grained && major->may_be_uneven &&
                          major->size % mesh::NumShards(sharding.dims[d]) != 0);
      }
    }
  };
  size_t operand = 0, result = 0;
  for (const ir::Expr& arg : call.args()) check(arg.ty(), rule.operands, &operand);
  check(var.ty(), rule.results, &result);
  return found;
}

/*! \brief True if some dimension, or the grains of one, does not divide into its shards. Grains of
 * operators are a dimension of some tensor of the call. */
bool HasUneven(const ir::IRModule& mod, rules::KernelTable* kernels) {
  dialect::MeshTable meshes(mod);
  bool found = false;
  for (const auto& [gv, base] : mod.functions()) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    for (const ir::Var& param : function.params()) found = found || meshes.IsUneven(param.ty());
    ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
      found = found || meshes.IsUneven(binding.var().ty()) ||
              HasUnevenGrains(binding.var(), ir::BoundCall(binding), &meshes, kernels);
    });
  }
  return found;
}

/*! \brief The symbolic sizes that parameters of a function state: those that are a dimension. */
void CollectStated(const ir::Type& type, std::vector<ir::Var>* out) {
  ir::MapDims(type, [out](const ir::Expr& dim) {
    if (auto var = ir::Var::Cast(dim); var.defined()) out->push_back(var);
    return dim;
  });
}

/*! \brief The symbolic sizes that a function states by parameters, if some of them are not stated
 * any more when these are padded; else none. All of them: on some meshes it may have no others. */
ffi::Array<ir::Expr> SizesToPass(const ir::Function& function, const ffi::Array<ir::Type>& padded) {
  std::vector<ir::Var> before, after;
  for (const ir::Var& param : function.params()) CollectStated(param.ty(), &before);
  for (const ir::Type& type : padded) CollectStated(type, &after);
  std::unordered_set<const ffi::Object*> stated, listed;
  for (const ir::Var& var : after) stated.insert(var.get());
  ffi::Array<ir::Expr> sizes;
  bool any = false;
  for (const ir::Var& var : before) {
    any = any || stated.count(var.get()) == 0;
    if (listed.insert(var.get()).second) sizes.push_back(var);
  }
  return any ? sizes : ffi::Array<ir::Expr>();
}

/*! \brief New names for the functions of which parameters or results are padded. */
PaddedFunctions NamePadded(const ir::IRModule& mod, const Grains& grains) {
  PaddedFunctions functions;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    ffi::Array<ir::Type> params;
    bool any = IsPadded(function.body().body().ty(), grains.OfResult(gv));
    for (const ir::Var& param : function.params()) {
      params.push_back(WithExtents(param.ty(), grains.Of(param)));
      any = any || !params.back().same_as(param.ty());
    }
    ir::GlobalVar name = any ? ir::MakeGlobalVar(gv.name()) : gv;
    const ffi::Array<ir::Expr> sizes = SizesToPass(function, params);
    if (any) {
      if (!sizes.empty()) params.push_back(ir::MakeShapeType(sizes));
      const ir::Type result = WithExtents(function.ret_ty(), grains.OfResult(gv));
      ir::SetType(name, ir::MakeFuncType(params, result, function.is_pure()));
    }
    functions.emplace(gv.get(), PaddedFunction{function, name, sizes});
  }
  return functions;
}

}  // namespace

ir::IRModule PadShards(const ir::IRModule& mod) {
  if (dialect::HasExplicitReductions(mod)) return mod;
  rules::KernelTable kernels(mod.functions());
  if (!HasUneven(mod, &kernels)) return mod;
  dialect::MeshTable meshes(mod);
  const DividingSizes dividing(mod, &meshes, &kernels);
  const Grains grains(mod, &meshes, &kernels, dividing);
  const ir::CallGraph calls(mod);
  rules::ResizedKernels padded_kernels(mod.functions(), "padded");
  const PaddedFunctions names = NamePadded(mod, grains);
  const PaddedModule padded{&meshes, &grains, &kernels, &padded_kernels, &names};
  ir::FunctionMap functions;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) {
      functions.Set(gv, base);
      continue;
    }
    function = dividing.Noted(function);
    if (!grains.Concern(gv, function)) {
      functions.Set(gv, function);
      continue;
    }
    ir::Count("functions");
    const bool is_called = !calls[*calls.Find(gv)].callers.empty();
    functions.Set(names.at(gv.get()).name, PadFunction(function, gv, is_called, padded));
  }
  for (const auto& [gv, kernel] : padded_kernels.made()) functions.Set(gv, kernel);
  return ir::MakeModule(functions, mod.attrs(), meshes.GlobalInfos());
}

}  // namespace distir::padding
