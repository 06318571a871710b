#include "runtime/reduce.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "runtime/stored_float.h"

namespace distir::runtime {

ReduceKind ParseReduceKind(const std::string& name) {
  if (name == "sum") return ReduceKind::kSum;
  if (name == "max") return ReduceKind::kMax;
  if (name == "min") return ReduceKind::kMin;
  if (name == "prod") return ReduceKind::kProd;
  if (name == "mean") return ReduceKind::kMean;
  TVM_FFI_THROW(ValueError) << "unknown reduction \"" << name
                            << "\"; known are sum, max, min, prod, mean";
  TVM_FFI_UNREACHABLE();
}

const char* ReduceKindName(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      return "sum";
    case ReduceKind::kMax:
      return "max";
    case ReduceKind::kMin:
      return "min";
    case ReduceKind::kProd:
      return "prod";
    case ReduceKind::kMean:
      return "mean";
  }
  return "unknown";
}

namespace {

// Storage types as in runtime/stored_float.h. Integers are combined as unsigned, where wrapping
// around is defined.
template <typename T>
struct Wrapping {
  using Stored = T;
  // uint16_t * uint16_t is an int that can overflow, so nothing narrower than 32 bits is combined.
  using Accumulator =
      std::conditional_t<(sizeof(T) < 4),
                         std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>, T>;
  static Accumulator Load(Stored v) { return v; }
  static Stored Store(Accumulator v) { return static_cast<Stored>(v); }
};

struct Bool {
  using Stored = uint8_t;
  using Accumulator = uint8_t;
  static uint8_t Load(uint8_t v) { return v != 0; }
  static uint8_t Store(uint8_t v) { return v; }
};

template <typename T>
T WrapAdd(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <typename T>
T WrapMultiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    return a * b;
  }
}

struct Sum {
  template <typename T>
  static T Combine(T a, T b) {
    return WrapAdd(a, b);
  }
};
struct Prod {
  template <typename T>
  static T Combine(T a, T b) {
    return WrapMultiply(a, b);
  }
};
struct Max {
  template <typename T>
  static T Combine(T a, T b) {
    // The comparison is false for a NaN on either side; `b != b` lets a NaN of b through.
    return (a < b || b != b) ? b : a;
  }
};
struct Min {
  template <typename T>
  static T Combine(T a, T b) {
    return (b < a || b != b) ? b : a;
  }
};
struct Or {
  template <typename T>
  static T Combine(T a, T b) {
    return a | b;
  }
};
struct And {
  template <typename T>
  static T Combine(T a, T b) {
    return a & b;
  }
};

constexpr int64_t kBlock = 512;  // elements; a block of accumulators stays in the first-level cache

template <typename Type, typename Operation, bool kMean>
void ReduceElements(const void* const* sources, int num_sources, int64_t begin, int64_t count,
                    void* out) {
  using Stored = typename Type::Stored;
  using Accumulator = typename Type::Accumulator;
  Stored* target = static_cast<Stored*>(out);
  Accumulator accumulators[kBlock];
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t size = std::min(kBlock, count - done);
    const Stored* first = static_cast<const Stored*>(sources[0]) + begin + done;
    for (int64_t i = 0; i < size; ++i) accumulators[i] = Type::Load(first[i]);
    for (int s = 1; s < num_sources; ++s) {
      const Stored* source = static_cast<const Stored*>(sources[s]) + begin + done;
      for (int64_t i = 0; i < size; ++i) {
        accumulators[i] = Operation::Combine(accumulators[i], Type::Load(source[i]));
      }
    }
    if constexpr (kMean) {
      const Accumulator divisor = static_cast<Accumulator>(num_sources);
      for (int64_t i = 0; i < size; ++i) accumulators[i] /= divisor;
    }
    for (int64_t i = 0; i < size; ++i) target[done + i] = Type::Store(accumulators[i]);
  }
}

template <typename Type>
ReduceFunction FindFloat(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      return ReduceElements<Type, Sum, false>;
    case ReduceKind::kMax:
      return ReduceElements<Type, Max, false>;
    case ReduceKind::kMin:
      return ReduceElements<Type, Min, false>;
    case ReduceKind::kProd:
      return ReduceElements<Type, Prod, false>;
    case ReduceKind::kMean:
      return ReduceElements<Type, Sum, true>;
  }
  return nullptr;
}

template <typename T>
ReduceFunction FindInteger(ReduceKind kind) {
  using Type = Wrapping<T>;
  switch (kind) {
    case ReduceKind::kSum:
      return ReduceElements<Type, Sum, false>;
    case ReduceKind::kMax:
      return ReduceElements<Type, Max, false>;
    case ReduceKind::kMin:
      return ReduceElements<Type, Min, false>;
    case ReduceKind::kProd:
      return ReduceElements<Type, Prod, false>;
    case ReduceKind::kMean:
      return nullptr;
  }
  return nullptr;
}

ReduceFunction FindBool(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMax:
      return ReduceElements<Bool, Or, false>;
    case ReduceKind::kMin:
    case ReduceKind::kProd:
      return ReduceElements<Bool, And, false>;
    case ReduceKind::kMean:
      return nullptr;
  }
  return nullptr;
}

bool IsBool(DLDataType dtype) {
  return dtype.code == kDLBool || (dtype.code == kDLUInt && dtype.bits == 1);
}

ReduceFunction FindScalarFunction(DLDataType dtype, ReduceKind kind) {
  if (IsBool(dtype)) return FindBool(kind);
  if (dtype.code == kDLBfloat && dtype.bits == 16) return FindFloat<BFloat16>(kind);
  if (dtype.code == kDLFloat) {
    if (dtype.bits == 16) return FindFloat<Float16>(kind);
    if (dtype.bits == 32) return FindFloat<Plain<float>>(kind);
    if (dtype.bits == 64) return FindFloat<Plain<double>>(kind);
  }
  if (dtype.code == kDLInt) {
    if (dtype.bits == 8) return FindInteger<int8_t>(kind);
    if (dtype.bits == 16) return FindInteger<int16_t>(kind);
    if (dtype.bits == 32) return FindInteger<int32_t>(kind);
    if (dtype.bits == 64) return FindInteger<int64_t>(kind);
  }
  if (dtype.code == kDLUInt) {
    if (dtype.bits == 8) return FindInteger<uint8_t>(kind);
    if (dtype.bits == 16) return FindInteger<uint16_t>(kind);
    if (dtype.bits == 32) return FindInteger<uint32_t>(kind);
    if (dtype.bits == 64) return FindInteger<uint64_t>(kind);
  }
  return nullptr;
}

}  // namespace

ReduceFunction FindReduceFunction(DLDataType dtype, ReduceKind kind) {
  const ReduceFunction found = dtype.lanes == 1 ? FindScalarFunction(dtype, kind) : nullptr;
  if (found != nullptr) return found;
  const bool integral =
      IsBool(dtype) || ((dtype.code == kDLInt || dtype.code == kDLUInt) && dtype.bits >= 8);
  if (kind == ReduceKind::kMean && integral) {
    TVM_FFI_THROW(TypeError) << "the mean of " << tvm::ffi::DLDataTypeToString(dtype)
                             << " tensors is not defined; reduce with sum, or cast to float first";
  }
  TVM_FFI_THROW(TypeError) << "tensors of dtype " << tvm::ffi::DLDataTypeToString(dtype)
                           << " can not be reduced; cast to a float, integer or bool type first";
  TVM_FFI_UNREACHABLE();
}

}  // namespace distir::runtime
