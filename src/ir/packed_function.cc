// Reads and writes attributes of packed functions.
#include "ir/packed_function.h"

#include "ir/tvm/reflection.h"

namespace distir::ir {

namespace {

const GlobalFunction kFuncWithAttr("ir.BaseFuncWithAttr");
const Field<Node> kFunctionAttrs("ir.BaseFunc", "attrs");

}  // namespace

ExternFunc PackedFunctionOf(const Call& call) {
  if (ExternFunc::Is(call.op())) return ExternFunc::Cast(call.op());
  if (!Op::Is(call.op()) || call.args().empty()) return ExternFunc();
  return ExternFunc::Cast(call.args()[0]);
}

ffi::Any GetAttr(const ExternFunc& function, const char* key) {
  return GetAttr(kFunctionAttrs(function), key);
}

ExternFunc WithAttr(const ExternFunc& function, const char* key, const ffi::Any& value) {
  return kFuncWithAttr(function, key, value).cast<ExternFunc>();
}

}  // namespace distir::ir
