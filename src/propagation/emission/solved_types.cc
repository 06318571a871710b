// Makes the DTensor types of solved values.
#include "propagation/emission/solved_types.h"

#include "ir/leaves.h"
#include "rules/call/infer_type.h"

namespace distir::propagation {

ir::Type SolvedTypes::Of(const ir::Type& type, const SlotList& slots) {
  InOrder in_order(slots);
  return Of(type, &in_order);
}

ir::Type SolvedTypes::Of(const ir::Type& type, InOrder<SlotList>* slots) {
  return ir::MapLeaves(type, [&](const ir::Type& leaf) -> ir::Type {
    if (!ir::TensorType::Is(leaf) && !ir::DTensorType::Is(leaf)) return leaf;
    const SlotState& slot = StateOf(slots->Take());
    const auto [mesh, placement] = meshes_.PlacementOf(slot.root, slot.sharding);
    return Placed(ir::TensorType::Cast(rules::StripDistribution(leaf)), mesh, placement);
  });
}

ffi::Array<ir::Type> SolvedTypes::OfParams() {
  ffi::Array<ir::Type> types;
  InOrder slots(instance_.graph->params);
  for (const ir::Var& param : instance_.graph->function.params())
    types.push_back(Of(param.ty(), &slots));
  return types;
}

ir::Type SolvedTypes::OfResult() {
  const FunctionGraph& graph = *instance_.graph;
  return Of(rules::StripDistribution(graph.function.body().body().ty()), graph.results);
}

}  // namespace distir::propagation
