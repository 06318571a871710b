#include "ir/tvm/legalize.h"

#include "ir/build.h"
#include "ir/tvm/functions.h"

namespace distir {
namespace ir {

PrimFunc LegalizedKernel(const Call& call) {
  auto legalize = functions::kOpGetAttr(call.op(), "FLegalize").try_cast<ffi::Function>();
  if (!legalize) return PrimFunc();
  const ffi::Any builder = functions::kBlockBuilder(nullptr);
  const auto made = Call::Cast((*legalize)(builder, call).cast<ffi::ObjectRef>());
  if (!made.defined() || !IsOp(made.op(), "relax.call_tir")) return PrimFunc();
  auto operands = Tuple::Cast(made.args()[1]);
  if (!operands.defined() || operands.fields().size() != call.args().size()) return PrimFunc();
  for (size_t i = 0; i < operands.fields().size(); ++i) {
    if (!operands.fields()[i].same_as(call.args()[i])) return PrimFunc();
  }
  const IRModule mod = IRModule::Cast(functions::kContextModule(builder).cast<ffi::ObjectRef>());
  return PrimFunc::Cast(mod.functions().at(GlobalVar::Cast(made.args()[0])));
}

}  // namespace ir
}  // namespace distir
