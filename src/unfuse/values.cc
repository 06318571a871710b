// Reads types of values that may be tensors or DTensors.
#include "unfuse/values.h"

#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"

namespace distir::unfuse {

ir::TensorType TypeOf(const ir::Expr& value) {
  auto type = ir::TensorType::Cast(rules::StripDistribution(value.ty()));
  return type.defined() && ir::HasKnownShape(type) ? type : ir::TensorType();
}

bool IsTensor(const ir::Expr& value) {
  return ir::TensorType::Is(value.ty()) || ir::DTensorType::Is(value.ty());
}

ir::Call Typed(const ffi::Any& made) {
  const auto call = made.cast<ir::Call>();
  return ir::MakeCall(rules::InferGlobalType(call), call.op(), call.args(), call.attrs(),
                      call.ty_args(), call.span());
}

}  // namespace distir::unfuse
