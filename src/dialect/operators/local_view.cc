// Registers call_tir_local_view, and finds the kernel that such a call runs.
#include "dialect/operators/local_view.h"

#include <tvm/ffi/error.h>

#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/tvm/registration.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

constexpr const char* kLocalView = "relax.dist.call_tir_local_view";
constexpr const char* kLocalViewInPlace = "relax.dist.call_tir_inplace_local_view";

}  // namespace

bool IsLocalView(const ir::Expr& op) {
  // All passes ask this of all calls.
  static const ir::Op ops[] = {ir::GetOp(kLocalView), ir::GetOp(kLocalViewInPlace)};
  return op.same_as(ops[0]) || op.same_as(ops[1]);
}

ir::Op LocalViewOf(const ir::Call& kernel_call) {
  const bool in_place = ir::IsOp(kernel_call.op(), "relax.call_tir_inplace");
  return ir::GetOp(in_place ? kLocalViewInPlace : kLocalView);
}

ir::Op KernelCallOf(const ir::Call& local_view) {
  if (ir::IsOp(local_view.op(), kLocalViewInPlace)) return ir::GetOp("relax.call_tir_inplace");
  const bool has_gradient = ir::attrs::kCallTIRWithGradTEGradName(local_view.attrs()) != nullptr;
  return ir::GetOp(has_gradient ? "relax.call_tir_with_grad" : "relax.call_tir");
}

namespace {

ir::Type InferStated(const ir::Call& call) {
  DISTIR_REQUIRE(call.ty_args().size() == 1 && ir::GlobalVar::Is(call.args()[0]), ValueError)
      << ir::CalleeName(call) << " takes a kernel of the module, its arguments and the type of its "
      << "result";
  return call.ty_args()[0];
}

const ir::OnLoad kRegisterLocalView([] {
  ir::RegisterOp(kLocalViewInPlace,
                 "Calls a kernel on the shards of each device, which writes to arguments.",
                 {"func", "args"}, true);
  ir::SetInferType(kLocalViewInPlace, InferStated);
  ir::SetInferDTensorType(kLocalViewInPlace, InferStated);
});

}  // namespace

}  // namespace distir::dialect
