// Recognises constants that are one whole number.
#include "ir/whole_number.h"

#include <tvm/ffi/container/tensor.h>

#include <cmath>

namespace distir::ir {

std::optional<int64_t> WholeNumber(const Expr& constant) {
  auto known = Constant::Cast(constant);
  if (!known.defined() || !known.IsTensor()) return std::nullopt;
  const auto tensor = known.value().cast<ffi::Tensor>();
  const DLDataType dtype = tensor.dtype();
  if (tensor.ndim() != 0 || dtype.lanes != 1 || tensor.device().device_type != kDLCPU)
    return std::nullopt;
  const void* data = tensor.data_ptr();
  if (dtype.code == kDLInt && dtype.bits == 64) return *static_cast<const int64_t*>(data);
  if (dtype.code == kDLInt && dtype.bits == 32) return *static_cast<const int32_t*>(data);
  double number = 0.5;
  if (dtype.code == kDLFloat && dtype.bits == 64) number = *static_cast<const double*>(data);
  if (dtype.code == kDLFloat && dtype.bits == 32) number = *static_cast<const float*>(data);
  const bool is_half = (dtype.code == kDLFloat || dtype.code == kDLBfloat) && dtype.bits == 16;
  if (is_half && *static_cast<const uint16_t*>(data) == 0) number = 0;
  const bool is_whole = std::abs(number) < 1e15 && std::floor(number) == number;
  return is_whole ? std::optional<int64_t>(static_cast<int64_t>(number)) : std::nullopt;
}

}  // namespace distir::ir
