// Asks TVM's FLegalize of an operator for its kernel.
#include "ir/tvm/legalize.h"

#include "ir/build.h"
#include "ir/tvm/functions.h"

namespace distir::ir {

PrimFunc LegalizedKernel(const Call& call) {
  auto legalize = functions::kOpGetAttr(call.op(), "FLegalize").try_cast<ffi::Function>();
  if (!legalize) return PrimFunc();
  const ffi::Any builder = functions::kBlockBuilder(nullptr);
  const auto made = Call::Cast((*legalize)(builder, call).cast<ffi::ObjectRef>());
  if (!made.defined() || !IsOp(made.op(), "relax.call_tir")) return PrimFunc();
  auto operands = Tuple::Cast(made.args()[1]);
  if (!operands.defined()) return PrimFunc();
  size_t next = 0;
  for (const Expr& arg : call.args()) {
    if (!TensorType::Is(arg.ty())) continue;  // sizes that the operator states
    if (next == operands.fields().size() || !operands.fields()[next++].same_as(arg))
      return PrimFunc();
  }
  if (next != operands.fields().size()) return PrimFunc();
  const IRModule mod = IRModule::Cast(functions::kContextModule(builder).cast<ffi::ObjectRef>());
  return PrimFunc::Cast(mod.functions().at(GlobalVar::Cast(made.args()[0])));
}

}  // namespace distir::ir
