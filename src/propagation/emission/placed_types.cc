// Shares one DTensor type object for equal shapes and placements.
#include "propagation/emission/placed_types.h"

#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/functions.h"

namespace distir::propagation {

ir::DTensorType PlacedTypes::Of(const ir::TensorType& tensor, const ir::DeviceMesh& mesh,
                                const ir::Placement& placement) {
  if (!ir::HasKnownShape(tensor) || ir::fields::kVirtualDevice(tensor).defined())
    return ir::MakeDTensorType(tensor, mesh, placement);
  key_ = {Address(mesh.get()), Address(placement.get()), Bits(tensor.dtype())};
  for (const ir::Expr& dim : ir::ShapeOf(tensor)) {
    key_.push_back(ir::StaticDim(dim));
    if (key_.back() < 0) return ir::MakeDTensorType(tensor, mesh, placement);
  }
  ir::DTensorType& known = known_[key_];
  if (!known.defined()) known = ir::MakeDTensorType(tensor, mesh, placement);
  return known;
}

}  // namespace distir::propagation
