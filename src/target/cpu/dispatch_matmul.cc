// DispatchMatmul: contractions of two tensors become calls of the runtime's einsum, which computes
// them by BLAS.
//
// Permutations of dimensions in front of a contraction, and one behind it, become part of its
// subscripts, so that BLAS reads and writes transposed matrices where they lie:
//
//     lv = R.permute_dims(w)
//     y = R.matmul(x, lv)
//     ->
//     y = R.call_dps_packed("distir.runtime.einsum", (x, w, R.str("ab,cb->ac")), ...)

#include "target/cpu/passes.h"
#include "target/products/dispatch.h"

namespace distir::target {

namespace {

bool IsComputed(DLDataType dtype) {
  if (dtype.lanes != 1) return false;
  if (dtype.code == kDLBfloat) return dtype.bits == 16;
  return dtype.code == kDLFloat && (dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64);
}

bool IsSmallInteger(const ir::TensorType& type) {
  if (!type.has_dtype() || type.dtype().lanes != 1) return false;
  return (type.dtype().code == kDLInt || type.dtype().code == kDLUInt) && type.dtype().bits == 8;
}

/*! \brief True if the runtime computes with these dtypes: with float64 only where all are, with
 * integers of 8 bits where their products are summed as int32. */
bool AreComputed(const ir::TensorType& a, const ir::TensorType& b, const ir::TensorType& result) {
  if (IsSmallInteger(a) && IsSmallInteger(b)) {
    return result.has_dtype() && result.dtype().code == kDLInt && result.dtype().bits == 32;
  }
  bool any_double = false;
  bool all_double = true;
  for (const ir::TensorType& type : {a, b, result}) {
    if (!type.has_dtype() || !IsComputed(type.dtype())) return false;
    bool is_double = type.dtype().bits == 64;
    any_double = any_double || is_double;
    all_double = all_double && is_double;
  }
  return any_double == all_double;
}

const char* Refuses(const Contraction& contraction, const ir::TensorType& result) {
  const auto type_of = [](const ir::Expr& operand) { return ir::TensorType::Cast(operand.ty()); };
  const auto& [left, right] = contraction.operands;
  return AreComputed(type_of(left), type_of(right), result) ? nullptr : "dtypes that BLAS lacks";
}

}  // namespace

ir::IRModule DispatchMatmul(const ir::IRModule& mod) {
  return DispatchProducts(mod, {"distir.runtime.einsum", Refuses, /*has_epilogues=*/false});
}

}  // namespace distir::target
