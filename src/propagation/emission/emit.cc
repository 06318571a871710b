// Emits the functions of a solved program, one copy of a callee for each signature.
#include "propagation/emission/emit.h"

#include "ir/build.h"
#include "ir/module/renew.h"
#include "propagation/emission/solved_types.h"

namespace distir::propagation {

void Emitter::EmitRoot(const Program& program, const std::string& name) {
  Specialize(program, 0, &name);
}

Specialization Emitter::Specialize(const Program& program, int index,
                                   const std::string* root_name) {
  const Instance& instance = program.instances[index];
  const FunctionGraph& graph = *instance.graph;
  // The signature: how every parameter and result is placed.
  std::vector<int64_t> key{reinterpret_cast<int64_t>(graph.function.get()), root_name != nullptr};
  for (const auto* slots : {&graph.params, &graph.results}) {
    for (int local : *slots) {
      const SlotState& slot = program.slots[instance.Slot(local)];
      key.push_back(-1 - slot.root);
      for (const mesh::AxisList& axes : slot.sharding.dims) {
        key.push_back(-1);
        for (const mesh::AxisRef& ref : axes)
          key.insert(key.end(), {ref.axis, ref.pre_size, ref.size});
      }
    }
  }
  auto found = specializations_.find(key);
  if (found != specializations_.end()) return found->second;

  ir::Type exact_ret_ty;
  std::string name = root_name != nullptr ? *root_name : unique_name_(graph.name);
  ir::GlobalVar gv = ir::MakeGlobalVar(name);
  if (instance.is_recursive) {
    // Calls inside the body need the signature before the body is written.
    SolvedTypes solved(emission_.meshes, program, index);
    exact_ret_ty = solved.OfResult();
    specializations_[key] = {gv, exact_ret_ty};
    ir::SetType(gv, ir::MakeFuncType(solved.OfParams(), exact_ret_ty, graph.function.is_pure()));
  }
  ir::Function function = EmitInstance(emission_, program, index, exact_ret_ty);
  if (root_name == nullptr) {
    // A specialised copy is nobody's entry point.
    ir::Node attrs = ir::WithAttr(function.attrs(), "global_symbol", ffi::Any());
    function = ir::MakeFunction(function.params(), function.body(), function.ret_ty(),
                                function.is_pure(), attrs);
  }
  if (!copied_.insert(graph.function.get()).second) function = ir::RenewVars(function);
  if (!instance.is_recursive) ir::SetType(gv, function.ty());
  Specialization result{gv, function.ret_ty()};
  specializations_[key] = result;
  functions_.push_back({gv, function});
  return result;
}

}  // namespace distir::propagation
