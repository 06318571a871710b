// DispatchCublasLt: contractions of two tensors become calls of the runtime, which computes them by
// cuBLASLt, with what is done to the result behind them.
//
//     lv = R.permute_dims(w)
//     lv1 = R.matmul(x, lv)
//     y = R.add(r, lv1)
//     ->
//     y = R.call_dps_packed("distir.runtime.cublaslt", (x, w, R.str("ab,cb->ac"), R.str("add"), r),
//                           ...)
//
// The last text names the terms that follow, in their order, and the activation: "bias add relu".

#include "target/gpu/dispatch_matmul.h"

#include "ir/tvm/pass.h"
#include "support/functions.h"
#include "target/gpu/matrix_form.h"
#include "target/products/dispatch.h"

namespace distir::target {

namespace {

bool IsFloatOf(DLDataType dtype, int bits) {
  return dtype.code == kDLFloat && dtype.bits == bits && dtype.lanes == 1;
}
bool IsHalf(DLDataType dtype) {
  return IsFloatOf(dtype, 16) || (dtype.code == kDLBfloat && dtype.bits == 16 && dtype.lanes == 1);
}

/*! \brief Operands of one dtype; the result has it too, or is float32. */
bool AreTaken(const ir::TensorType& a, const ir::TensorType& b, const ir::TensorType& result) {
  if (!a.has_dtype() || !b.has_dtype() || !result.has_dtype()) return false;
  if (a.dtype() != b.dtype()) return false;
  if (IsHalf(a.dtype())) return result.dtype() == a.dtype() || IsFloatOf(result.dtype(), 32);
  return (IsFloatOf(a.dtype(), 32) || IsFloatOf(a.dtype(), 64)) && result.dtype() == a.dtype();
}

const char* RefusesProduct(const Contraction& contraction, const ir::TensorType& result) {
  const auto type_of = [](const ir::Expr& operand) { return ir::TensorType::Cast(operand.ty()); };
  const auto& [left, right] = contraction.operands;
  if (!AreTaken(type_of(left), type_of(right), result)) return "dtypes that cuBLASLt lacks";
  const Epilogue& epilogue = contraction.epilogue;
  const bool is_double = IsFloatOf(result.dtype(), 64);
  if (is_double && (epilogue.bias.defined() || !epilogue.activation.empty()))
    return "float64 with an epilogue";
  return LacksMatrixForm(contraction, result);
}

}  // namespace

ir::IRModule DispatchCublasLt(const ir::IRModule& mod) {
  return DispatchProducts(mod, {"distir.runtime.cublaslt", RefusesProduct, /*has_epilogues=*/true});
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.target.DispatchCublasLt",
                           [] { return ir::MakeModulePass("DispatchCublasLt", DispatchCublasLt); });
}

}  // namespace distir::target
