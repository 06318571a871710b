#include "propagation/solved_types.h"

#include "ir/build.h"
#include "rules/call/infer_type.h"

namespace distir {
namespace propagation {

ir::Type SolvedTypes::Of(const ir::Type& type, const SlotList& slots) {
  InOrder in_order(slots);
  return Of(type, &in_order);
}

ir::Type SolvedTypes::Of(const ir::Type& type, InOrder<SlotList>* slots) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    ffi::Array<ir::Type> fields;
    for (const ir::Type& field : tuple.fields()) fields.push_back(Of(field, slots));
    return ir::MakeTupleType(fields);
  }
  if (ir::TensorType::Is(type) || ir::DTensorType::Is(type)) {
    const SlotState& slot = StateOf(slots->Take());
    return meshes_.TypeOf(ir::TensorType::Cast(rules::StripDistribution(type)), slot.root,
                          slot.sharding);
  }
  return type;
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

}  // namespace propagation
}  // namespace distir
