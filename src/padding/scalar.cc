// Makes scalar constants of any dtype in a form that TVMScript can print.
#include "padding/scalar.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <cstring>
#include <limits>
#include <vector>

#include "ir/tvm/functions.h"
#include "ir/tvm/reflection.h"

namespace distir::padding {

namespace ffi = tvm::ffi;

namespace {

bool IsInteger(DLDataType dtype) { return dtype.code == kDLInt || dtype.code == kDLUInt; }

/*! \brief A scalar of the leading bytes of a value; for integers, of a little-endian machine. */
template <typename T>
ffi::Any FromValue(DLDataType dtype, T value) {
  auto tensor = ir::functions::kAllocateTensor(ffi::Shape(std::vector<int64_t>{}), dtype,
                                               DLDevice{kDLCPU, 0}, ffi::Optional<ffi::String>())
                    .cast<ffi::Tensor>();
  std::memcpy(tensor.data_ptr(), &value, dtype.bits / 8);
  return tensor;
}

ffi::Any FloatOf(DLDataType dtype, rules::Tail tail) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double value = tail == rules::Tail::kNotANumber ? std::numeric_limits<double>::quiet_NaN()
                       : tail == rules::Tail::kLowest   ? -infinity
                                                        : infinity;
  return dtype.bits == 64 ? FromValue(dtype, value) : FromValue(dtype, static_cast<float>(value));
}

/*! \brief The least or the greatest value of integers and booleans. */
int64_t Extreme(DLDataType dtype, bool is_lowest) {
  if (dtype.code == kDLBool) return is_lowest ? 0 : 1;
  uint64_t half = uint64_t{1} << (dtype.bits - 1);
  if (dtype.code == kDLUInt) return is_lowest ? 0 : static_cast<int64_t>(half - 1 + half);
  return is_lowest ? -static_cast<int64_t>(half - 1) - 1 : static_cast<int64_t>(half - 1);
}

}  // namespace

DLDataType WrittenAs(DLDataType dtype) {
  if (dtype.code == kDLInt || dtype.code == kDLBool) return dtype;
  if (dtype.code == kDLUInt) return DLDataType{kDLInt, 64, 1};
  return DLDataType{kDLFloat, static_cast<uint8_t>(dtype.bits == 64 ? 64 : 32), 1};
}

ffi::Any ScalarOf(DLDataType written, int64_t number) {
  if (written.code != kDLFloat) return FromValue(written, number);
  if (written.bits == 64) return FromValue(written, static_cast<double>(number));
  return FromValue(written, static_cast<float>(number));
}

ffi::Any FillOf(DLDataType dtype, rules::Tail tail) {
  DLDataType written = WrittenAs(dtype);
  if (tail == rules::Tail::kZero || tail == rules::Tail::kAny) return ScalarOf(written, 0);
  if (tail == rules::Tail::kOne) return ScalarOf(written, 1);
  if (!IsInteger(dtype) && dtype.code != kDLBool) return FloatOf(written, tail);
  return ScalarOf(written, Extreme(dtype, tail == rules::Tail::kLowest));
}

}  // namespace distir::padding
