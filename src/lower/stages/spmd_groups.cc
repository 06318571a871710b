// Groups devices that belong to the same meshes.
#include "lower/stages/spmd_groups.h"

#include <map>
#include <utility>

#include "ir/leaves.h"
#include "ir/rewriter.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

namespace {

/*! \brief The root meshes that the types of a function mention. */
std::set<int> RootsOf(const ir::Function& function, dialect::MeshTable* meshes) {
  std::set<int> roots;
  const auto visit = [&](const ir::Type& type) {
    ir::ForEachLeaf(type, [&](const ir::Type& leaf) {
      if (auto dtensor = ir::DTensorType::Cast(leaf); dtensor.defined())
        roots.insert(meshes->DevicesOf(meshes->RootOf(dtensor.device_mesh())));
    });
  };
  for (const ir::Var& param : function.params()) visit(param.ty());
  ir::VisitBindings(function.body(),
                    [&visit](const ir::Binding& binding) { visit(binding.var().ty()); });
  visit(function.ret_ty());
  return roots;
}

}  // namespace

FunctionRoots RootsOfFunctions(const ir::IRModule& mod, const ir::CallGraph& calls,
                               dialect::MeshTable* meshes) {
  std::vector<std::set<int>> roots(calls.size());
  for (size_t i = 0; i < calls.size(); ++i)
    roots[i] = RootsOf(ir::Function::Cast(mod.functions().at(calls[i].name)), meshes);
  calls.SpreadToCallers([&roots](size_t caller, size_t callee) {
    const size_t before = roots[caller].size();
    roots[caller].insert(roots[callee].begin(), roots[callee].end());
    return roots[caller].size() != before;
  });
  FunctionRoots by_name;
  for (size_t i = 0; i < calls.size(); ++i)
    by_name.emplace(calls[i].name.get(), std::move(roots[i]));
  return by_name;
}

std::vector<SpmdGroup> SpmdGroups(const std::set<int>& roots, const dialect::MeshTable& meshes) {
  std::map<int64_t, std::set<int>> roots_of_device;
  for (int root : roots) {
    for (int64_t id : meshes.Root(root).device_ids) roots_of_device[id].insert(root);
  }
  std::vector<SpmdGroup> groups;
  std::map<std::set<int>, size_t> index;  // in groups
  for (const auto& [id, device_roots] : roots_of_device) {
    const auto [it, is_new] = index.emplace(device_roots, groups.size());
    if (is_new) groups.push_back({device_roots, {}});
    groups[it->second].device_ids.push_back(id);
  }
  return groups;
}

}  // namespace distir::lower
