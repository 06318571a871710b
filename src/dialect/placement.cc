// Reads and compares the placements of DTensor types.
#include "dialect/placement.h"

#include <algorithm>

#include "ir/leaves.h"

namespace distir::dialect {

std::vector<int> PlacementDims(const ir::Placement& placement) {
  std::vector<int> dims;
  for (const ir::PlacementSpec& spec : placement.dim_specs()) dims.push_back(spec.dim());
  return dims;
}

std::string PlacementText(const ir::Placement& placement) {
  std::string text;
  for (int dim : PlacementDims(placement)) {
    text += text.empty() ? "" : ", ";
    text += dim < 0 ? "R" : "S[" + std::to_string(dim) + "]";
  }
  return text;
}

bool SamePlacement(const ir::Placement& a, const ir::Placement& b) {
  return a.same_as(b) || PlacementDims(a) == PlacementDims(b);
}

bool SamePlacement(const ir::DTensorType& a, const ir::DTensorType& b) {
  return a.device_mesh().same_as(b.device_mesh()) && SamePlacement(a.placement(), b.placement());
}

bool SamePlacements(const ir::Type& a, const ir::Type& b) {
  if (auto tuple = ir::TupleType::Cast(a); tuple.defined()) {
    auto other = ir::TupleType::Cast(b);
    if (!other.defined() || tuple.fields().size() != other.fields().size()) return false;
    for (size_t i = 0; i < tuple.fields().size(); ++i) {
      if (!SamePlacements(tuple.fields()[i], other.fields()[i])) return false;
    }
    return true;
  }
  auto from = ir::DTensorType::Cast(a);
  auto to = ir::DTensorType::Cast(b);
  if (!from.defined() || !to.defined()) return from.defined() == to.defined();
  return SamePlacement(from, to);
}

bool HasDTensor(const ir::Type& type) {
  return ir::AnyLeaf(type, [](const ir::Type& leaf) { return ir::DTensorType::Is(leaf); });
}

bool TakesDTensors(const ir::Call& call) {
  return std::any_of(call.args().begin(), call.args().end(),
                     [](const ir::Expr& arg) { return HasDTensor(arg.ty()); });
}

void CollectDTensorTypes(const ir::Type& type, std::vector<ir::DTensorType>* out) {
  ir::ForEachLeaf(type, [out](const ir::Type& leaf) {
    if (ir::DTensorType::Is(leaf) || ir::TensorType::Is(leaf))
      out->push_back(ir::DTensorType::Cast(leaf));
  });
}

}  // namespace distir::dialect
