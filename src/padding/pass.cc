// PadShards: dimensions that their shards do not divide get the next extent that they do.
#include "padding/pass.h"

#include <unordered_set>

#include "ir/build.h"
#include "ir/module/call_graph.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "padding/pad_function.h"

namespace distir {
namespace padding {

namespace {

bool HasUneven(const ir::Function& function, dialect::MeshTable* meshes) {
  bool found = false;
  for (const ir::Var& param : function.params()) found = found || meshes->IsUneven(param.ty());
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    found = found || meshes->IsUneven(binding.var().ty());
  });
  return found;
}

bool HasUnevenSignature(const ir::Function& function, dialect::MeshTable* meshes) {
  bool found = meshes->IsUneven(function.body().body().ty());
  for (const ir::Var& param : function.params()) found = found || meshes->IsUneven(param.ty());
  return found;
}

/*! \brief New names for the functions of which parameters or results are padded. */
NewNames NamePadded(const ir::IRModule& mod, PaddedTypes* types, dialect::MeshTable* meshes) {
  NewNames names;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined() || !HasUnevenSignature(function, meshes)) continue;
    ir::GlobalVar name = ir::MakeGlobalVar(gv.name());
    ffi::Array<ir::Type> params;
    for (const ir::Var& param : function.params()) params.push_back(types->Padded(param.ty()));
    ir::SetType(name,
                ir::MakeFuncType(params, types->Padded(function.ret_ty()), function.is_pure()));
    names.emplace(gv.get(), name);
  }
  return names;
}

}  // namespace

ir::IRModule PadShards(const ir::IRModule& mod) {
  if (dialect::HasExplicitReductions(mod)) return mod;
  std::unordered_set<const ffi::Object*> uneven;
  {
    dialect::MeshTable meshes(mod);
    for (const auto& [gv, base] : mod.functions()) {
      ir::Function function = ir::Function::Cast(base);
      if (function.defined() && HasUneven(function, &meshes)) uneven.insert(gv.get());
    }
  }
  if (uneven.empty()) return mod;
  dialect::MeshTable meshes(mod);
  PaddedTypes types(&meshes);
  const ir::CallGraph calls(mod);
  ir::Count("functions", static_cast<int64_t>(uneven.size()));
  rules::KernelTable kernels(mod.functions());
  PaddedKernels padded_kernels(mod.functions());
  const NewNames names = NamePadded(mod, &types, &meshes);
  const PaddedModule padded{&meshes, &types, &kernels, &padded_kernels, &names};
  ir::FunctionMap functions;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    if (uneven.count(gv.get()) == 0) {
      functions.Set(gv, base);
      continue;
    }
    const bool is_called = !calls[*calls.Find(gv)].callers.empty();
    auto name = names.find(gv.get());
    functions.Set(name == names.end() ? gv : name->second,
                  PadFunction(ir::Function::Cast(base), gv.name(), is_called, padded));
  }
  for (const auto& [gv, kernel] : padded_kernels.made()) functions.Set(gv, kernel);
  return ir::MakeModule(functions, mod.attrs(), meshes.GlobalInfos());
}

}  // namespace padding
}  // namespace distir
