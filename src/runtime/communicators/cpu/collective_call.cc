// Describes and compares the collective calls of group members.
#include "runtime/communicators/cpu/collective_call.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "runtime/kernels/format_list.h"

namespace distir::runtime::cpu {

CollectiveCall::CollectiveCall(const char* operation, int64_t step, DLDataType dtype,
                               const int64_t* shape, int ndim, int64_t argument0, int64_t argument1)
    : step(step), arguments{argument0, argument1}, dtype(dtype), ndim(ndim) {
  if (ndim > kMaxDims) {
    TVM_FFI_THROW(ValueError) << "tensors have at most " << kMaxDims << " dimensions, not " << ndim;
  }
  std::strncpy(this->operation, operation, sizeof(this->operation) - 1);
  std::copy(shape, shape + ndim, this->shape);
}

bool CollectiveCall::IsWellFormed() const {
  const char* end = std::find(operation, operation + sizeof(operation), '\0');
  return end != operation + sizeof(operation) && ndim >= 0 && ndim <= kMaxDims &&
         std::all_of(operation, end, [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

bool CollectiveCall::Matches(const CollectiveCall& other) const {
  return std::strcmp(operation, other.operation) == 0 && step == other.step &&
         arguments[0] == other.arguments[0] && arguments[1] == other.arguments[1] &&
         dtype == other.dtype && ndim == other.ndim && std::equal(shape, shape + ndim, other.shape);
}

std::string CollectiveCall::Describe() const {
  std::string type;
  try {
    type = tvm::ffi::DLDataTypeToString(dtype);
  } catch (const std::exception&) {  // a peer's; a message about it must not fail
    type = "an unknown type";
  }
  return std::string(operation) + " of " + type + " " + FormatList(shape, shape + ndim);
}

void ThrowDisagreement(int device, const CollectiveCall& call, int other_device,
                       const CollectiveCall& other_call) {
  TVM_FFI_THROW(ValueError) << "the programs of the workers disagree: device " << device
                            << " calls " << call.Describe() << " while device " << other_device
                            << " calls " << other_call.Describe()
                            << (call.step != other_call.step ? " in another step" : "");
  TVM_FFI_UNREACHABLE();
}

}  // namespace distir::runtime::cpu
