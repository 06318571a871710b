/*!
 * \file optimize/experts/types.h
 * \brief Types of values that have a row per token, and reshapes of such values.
 */
#ifndef DISTIR_OPTIMIZE_EXPERTS_TYPES_H_
#define DISTIR_OPTIMIZE_EXPERTS_TYPES_H_

#include <vector>

#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/node.h"
#include "ir/symbolic.h"
#include "support/dtypes.h"

namespace distir::optimize {

namespace ffi = tvm::ffi;

inline ir::DTensorType TypeOf(const ir::Expr& expr) { return ir::DTensorType::Cast(expr.ty()); }
inline std::vector<int> DimsOf(const ir::DTensorType& type) {
  return dialect::PlacementDims(type.placement());
}
inline const ir::NodeArray<ir::Expr>& ShapeOf(const ir::DTensorType& type) {
  return ir::ShapeOf(type.tensor_ty());
}
inline bool IsFloat(const ir::TensorType& type) {
  return type.has_dtype() && distir::IsFloat(type.dtype()) && type.dtype().lanes == 1;
}

inline ir::Call Reshaped(const ir::Expr& value, const ir::NodeArray<ir::Expr>& shape,
                         const ir::Placement& placement) {
  const ir::DTensorType type = TypeOf(value);
  ir::Call call = ir::make::kReshape(value, ir::MakeShape(shape)).cast<ir::Call>();
  ir::SetType(call, ir::MakeDTensorType(ir::MakeTensorType(shape, type.tensor_ty()),
                                        type.device_mesh(), placement));
  return call;
}
inline ir::Call Reshaped(const ir::Expr& value, const ir::NodeArray<ir::Expr>& shape,
                         const std::vector<int>& placed) {
  return Reshaped(value, shape, ir::MakePlacement(placed));
}

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_EXPERTS_TYPES_H_
