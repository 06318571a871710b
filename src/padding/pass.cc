// PadShards: dimensions that their shards do not divide get the next extent that they do.
#include "padding/pass.h"

#include "ir/build.h"
#include "ir/module/call_graph.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "padding/pad_function.h"

namespace distir {
namespace padding {

namespace {

/*! \brief Whether some dimension does not divide into its shards. Grains are padded only then: a
 * dimension of as many elements as it has grains is among those that belong together. */
bool HasUneven(const ir::IRModule& mod) {
  dialect::MeshTable meshes(mod);
  bool found = false;
  for (const auto& [gv, base] : mod.functions()) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    for (const ir::Var& param : function.params()) found = found || meshes.IsUneven(param.ty());
    ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
      found = found || meshes.IsUneven(binding.var().ty());
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
  if (!HasUneven(mod)) return mod;
  dialect::MeshTable meshes(mod);
  rules::KernelTable kernels(mod.functions());
  const Grains grains(mod, &meshes, &kernels);
  const ir::CallGraph calls(mod);
  PaddedKernels padded_kernels(mod.functions());
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
