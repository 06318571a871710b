// distir.runtime.convolution(data, weight, "NCHW,OIHW->NCHW strides=1,1 ..", out): a convolution of
// tensors in host memory.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <array>
#include <cstring>
#include <string>

#include "runtime/kernels/convolution/depthwise.h"
#include "runtime/kernels/convolution/formats.h"
#include "runtime/kernels/convolution/forward.h"
#include "runtime/kernels/convolution/sizes.h"
#include "runtime/kernels/convolution/transposed.h"
#include "runtime/kernels/strided_copy.h"
#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;
using ffi::TensorView;

namespace {

template <typename In, typename Out>
void Compute(const Convolution& sizes, const std::array<TensorView, 3>& tensors) {
  const auto* data = reinterpret_cast<const typename In::Stored*>(DataOf(tensors[kData]));
  const auto* weight = reinterpret_cast<const typename In::Stored*>(DataOf(tensors[kWeight]));
  auto* out = reinterpret_cast<typename Out::Stored*>(DataOf(tensors[kOut]));
  if (Depthwise<In, Out>::Computes(sizes))
    return Depthwise<In, Out>(sizes, data, weight, out).Run();
  if (!sizes.is_transposed) return Forward<In, Out>(sizes, data, weight, out, false).Run();
  if (const auto forward = AsForward(sizes))
    return Forward<In, Out>(*forward, data, weight, out, true).Run();
  if constexpr (kExactTerms<In> == 0) return Transposed<In, Out>(sizes, data, weight, out).Run();
  TVM_FFI_THROW(ValueError) << "convolution: a transposed one of integers with strides";
}

bool Is(const TensorView& tensor, DLDataTypeCode code, int bits) {
  const DLDataType dtype = tensor.dtype();
  return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}

using Function = void (*)(const Convolution&, const std::array<TensorView, 3>&);

/*! \brief The function for tensors of these dtypes; null if there is none. */
Function Choose(const std::array<TensorView, 3>& tensors) {
  struct Format {
    DLDataTypeCode in;
    int in_bits;
    DLDataTypeCode out;
    int out_bits;
    Function function;
  };
  static constexpr Format kFormats[] = {
      {kDLFloat, 32, kDLFloat, 32, Compute<Plain<float>, Plain<float>>},
      {kDLFloat, 64, kDLFloat, 64, Compute<Plain<double>, Plain<double>>},
      {kDLFloat, 16, kDLFloat, 16, Compute<Float16, Float16>},
      {kDLFloat, 16, kDLFloat, 32, Compute<Float16, Plain<float>>},
      {kDLBfloat, 16, kDLBfloat, 16, Compute<BFloat16, BFloat16>},
      {kDLBfloat, 16, kDLFloat, 32, Compute<BFloat16, Plain<float>>},
      {kDLInt, 8, kDLInt, 32, Compute<SmallInteger<int8_t>, Plain<int32_t>>},
      {kDLUInt, 8, kDLInt, 32, Compute<SmallInteger<uint8_t>, Plain<int32_t>>},
  };
  for (const Format& each : kFormats) {
    if (Is(tensors[kData], each.in, each.in_bits) && Is(tensors[kWeight], each.in, each.in_bits) &&
        Is(tensors[kOut], each.out, each.out_bits))
      return each.function;
  }
  return nullptr;
}

void RunConvolution(TensorView data, TensorView weight, const ffi::String& text, TensorView out) {
  const std::array<TensorView, 3> tensors = {data, weight, out};
  for (const TensorView& tensor : tensors) {
    if (tensor.device().device_type != kDLCPU)
      TVM_FFI_THROW(ValueError) << "convolution: a tensor does not lie in host memory";
  }
  const Function function = Choose(tensors);
  if (function == nullptr) {
    TVM_FFI_THROW(ValueError) << "convolution: " << ffi::DLDataTypeToString(data.dtype()) << ", "
                              << ffi::DLDataTypeToString(weight.dtype()) << " -> "
                              << ffi::DLDataTypeToString(out.dtype()) << " is not supported";
  }
  const Convolution sizes = ReadConvolution(std::string(text), tensors);
  if (out.numel() == 0) return;
  if (data.numel() == 0 || weight.numel() == 0) {
    std::memset(DataOf(out), 0, out.numel() * ElementBytes(out.dtype()));
    return;
  }
  function(sizes, tensors);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.runtime.convolution", RunConvolution);
}

}  // namespace

}  // namespace distir::runtime
