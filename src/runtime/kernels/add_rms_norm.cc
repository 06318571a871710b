// Adds a residual and applies RMS norm in one pass over each row.
#include "runtime/kernels/add_rms_norm.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cmath>

#include "runtime/kernels/floats/stored_float.h"

namespace distir::runtime {

namespace {

// Partial sums of squares, so that the compiler may add several at a time.
constexpr int64_t kLanes = 16;

template <typename Type>
float AddRow(typename Type::Stored* sum, const typename Type::Stored* residual, int64_t width) {
  float squares[kLanes] = {};
  for (int64_t begin = 0; begin < width; begin += kLanes) {
    const int64_t lanes = std::min(kLanes, width - begin);
    for (int64_t i = 0; i < lanes; ++i) {
      const auto stored = Type::Store(Type::Load(residual[begin + i]) + Type::Load(sum[begin + i]));
      sum[begin + i] = stored;
      const float value = Type::Load(stored);
      squares[i] += value * value;
    }
  }
  float total = 0;
  for (float each : squares) total += each;
  return total;
}

template <typename Type>
void AddRmsNorm(void* sum, const void* residual, const void* weight, int64_t rows, int64_t width,
                float epsilon, void* normed) {
  using Stored = typename Type::Stored;
  const auto* scale_by = static_cast<const Stored*>(weight);
  for (int64_t row = 0; row < rows; ++row) {
    Stored* values = static_cast<Stored*>(sum) + row * width;
    Stored* out = static_cast<Stored*>(normed) + row * width;
    const float squares =
        AddRow<Type>(values, static_cast<const Stored*>(residual) + row * width, width);
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(width) + epsilon);
    for (int64_t i = 0; i < width; ++i)
      out[i] = Type::Store(Type::Load(values[i]) * scale * Type::Load(scale_by[i]));
  }
}

}  // namespace

AddRmsNormFunction FindAddRmsNorm(DLDataType dtype) {
  if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 32)
    return AddRmsNorm<Plain<float>>;
  if (dtype.lanes == 1 && dtype.code == kDLFloat && dtype.bits == 16) return AddRmsNorm<Float16>;
  if (dtype.lanes == 1 && dtype.code == kDLBfloat && dtype.bits == 16) return AddRmsNorm<BFloat16>;
  TVM_FFI_THROW(TypeError) << "tensors of dtype " << tvm::ffi::DLDataTypeToString(dtype)
                           << " cannot be normed; cast to float32, float16 or bfloat16 first";
  TVM_FFI_UNREACHABLE();
}

}  // namespace distir::runtime
