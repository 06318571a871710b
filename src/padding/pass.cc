// PadShards: dimensions that their shards do not divide get the next extent that they do.
#include "padding/pass.h"

#include "ir/build.h"
#include "ir/module/call_graph.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "padding/pad_function.h"
#include "rules/call/infer_type.h"
#include "rules/registry.h"
#include "rules/tir/rule.h"

namespace distir {
namespace padding {

namespace {

/*! \brief Whether the grains of a tensor that a kernel takes or gives do not divide into its
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

/*! \brief Whether some dimension, or the grains of one, does not divide into its shards. Grains of
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

/*! \brief New names for the functions of which parameters or results are padded. */
NewNames NamePadded(const ir::IRModule& mod, const Grains& grains) {
  NewNames names;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    ffi::Array<ir::Type> params;
    bool any = IsPadded(function.body().body().ty(), grains.OfResult(gv));
    for (const ir::Var& param : function.params()) {
      params.push_back(WithExtents(param.ty(), grains.Of(param)));
      any = any || !params.back().same_as(param.ty());
    }
    if (!any) continue;
    ir::GlobalVar name = ir::MakeGlobalVar(gv.name());
    const ir::Type result = WithExtents(function.ret_ty(), grains.OfResult(gv));
    ir::SetType(name, ir::MakeFuncType(params, result, function.is_pure()));
    names.emplace(gv.get(), name);
  }
  return names;
}

}  // namespace

ir::IRModule PadShards(const ir::IRModule& mod) {
  if (dialect::HasExplicitReductions(mod)) return mod;
  rules::KernelTable kernels(mod.functions());
  if (!HasUneven(mod, &kernels)) return mod;
  dialect::MeshTable meshes(mod);
  const Grains grains(mod, &meshes, &kernels);
  const ir::CallGraph calls(mod);
  rules::ResizedKernels padded_kernels(mod.functions(), "padded");
  const NewNames names = NamePadded(mod, grains);
  const PaddedModule padded{&meshes, &grains, &kernels, &padded_kernels, &names};
  ir::FunctionMap functions;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined() || !grains.Concern(gv, function)) {
      functions.Set(gv, base);
      continue;
    }
    ir::Count("functions");
    const bool is_called = !calls[*calls.Find(gv)].callers.empty();
    auto name = names.find(gv.get());
    functions.Set(name == names.end() ? gv : name->second,
                  PadFunction(function, gv, is_called, padded));
  }
  for (const auto& [gv, kernel] : padded_kernels.made()) functions.Set(gv, kernel);
  return ir::MakeModule(functions, mod.attrs(), meshes.GlobalInfos());
}

}  // namespace padding
}  // namespace distir
