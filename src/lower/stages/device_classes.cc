#include "lower/stages/device_classes.h"

#include <unordered_map>

#include "ir/leaves.h"
#include "ir/rewriter.h"

namespace distir {
namespace lower {

namespace ffi = tvm::ffi;

namespace {

class RootCollector {
 public:
  explicit RootCollector(dialect::MeshTable* meshes) : meshes_(*meshes) {}

  void Visit(const ir::Function& function) {
    for (const ir::Var& param : function.params()) Visit(param.ty());
    ir::VisitBindings(function.body(), [this](const ir::Binding& binding) {
      Visit(binding.var().ty());
      ir::Call call = ir::BoundCall(binding);
      if (call.defined() && ir::GlobalVar::Is(call.op())) callees.insert(call.op().get());
    });
    Visit(function.ret_ty());
  }

  std::set<int> roots;
  std::set<const ffi::Object*> callees;

 private:
  void Visit(const ir::Type& type) {
    ir::ForEachLeaf(type, [this](const ir::Type& leaf) {
      if (auto dtensor = ir::DTensorType::Cast(leaf); dtensor.defined())
        roots.insert(meshes_.RootOf(dtensor.device_mesh()));
    });
  }

  dialect::MeshTable& meshes_;
};

}  // namespace

FunctionRoots RootsOfFunctions(const ir::IRModule& mod, dialect::MeshTable* meshes) {
  FunctionRoots roots;
  std::unordered_map<const ffi::Object*, std::vector<const ffi::Object*>> callers;
  std::vector<const ffi::Object*> pending;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    RootCollector collector(meshes);
    collector.Visit(function);
    roots[gv.get()] = collector.roots;
    for (const ffi::Object* callee : collector.callees) callers[callee].push_back(gv.get());
    pending.push_back(gv.get());
  }
  while (!pending.empty()) {
    const ffi::Object* callee = pending.back();
    pending.pop_back();
    for (const ffi::Object* caller : callers[callee]) {
      size_t before = roots[caller].size();
      roots[caller].insert(roots[callee].begin(), roots[callee].end());
      if (roots[caller].size() != before) pending.push_back(caller);
    }
  }
  return roots;
}

std::vector<DeviceClass> DeviceClasses(const std::set<int>& roots,
                                       const dialect::MeshTable& meshes) {
  std::map<int64_t, std::set<int>> roots_of_device;
  for (int root : roots) {
    for (int64_t id : meshes.Root(root).device_ids) roots_of_device[id].insert(root);
  }
  std::vector<DeviceClass> classes;
  std::map<std::set<int>, size_t> index;  // in classes
  for (const auto& [id, device_roots] : roots_of_device) {
    const auto [it, is_new] = index.emplace(device_roots, classes.size());
    if (is_new) classes.push_back({device_roots, {}});
    classes[it->second].device_ids.push_back(id);
  }
  return classes;
}

}  // namespace lower
}  // namespace distir
