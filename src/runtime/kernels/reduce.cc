// Reduces equally shaped buffers element by element, in the order given.
#include "runtime/kernels/reduce.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "runtime/kernels/floats/stored_float.h"
#include "runtime/kernels/streaming_store.h"

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

// Storage types as in runtime/kernels/floats/stored_float.h. Integers are combined as unsigned,
// where wrapping around is defined.
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

// Bytes that are combined at a time. Short, so that memory is read along all sources at once.
constexpr int64_t kLineBytes = 128;

template <typename Type, typename Operation, bool kMean>
struct Reduction {
  using Stored = typename Type::Stored;
  using Accumulator = typename Type::Accumulator;
  static constexpr int64_t kLine = kLineBytes / sizeof(Stored);

  // Elements [at, at + size) of all sources; inlined for a constant size.
  static inline void Combine(const void* const* sources, int num_sources, int64_t at, int64_t size,
                             Stored* line) {
    Accumulator accumulators[kLine];
    const Stored* first = static_cast<const Stored*>(sources[0]) + at;
    for (int64_t i = 0; i < size; ++i) accumulators[i] = Type::Load(first[i]);
    for (int s = 1; s < num_sources; ++s) {
      const Stored* source = static_cast<const Stored*>(sources[s]) + at;
      for (int64_t i = 0; i < size; ++i)
        accumulators[i] = Operation::Combine(accumulators[i], Type::Load(source[i]));
    }
    if constexpr (kMean) {
      const Accumulator divisor = static_cast<Accumulator>(num_sources);
      for (int64_t i = 0; i < size; ++i) accumulators[i] /= divisor;
    }
    for (int64_t i = 0; i < size; ++i) line[i] = Type::Store(accumulators[i]);
  }

  template <bool kStreams>
  static void Run(const void* const* sources, int num_sources, int64_t begin, int64_t count,
                  void* const* outs, int num_outs) {
    if (kStreams && !std::all_of(outs, outs + num_outs, IsStreamAligned))
      return Run<false>(sources, num_sources, begin, count, outs, num_outs);
    Stored line[kLine];
    int64_t done = 0;
    for (; done + kLine <= count; done += kLine) {
      Combine(sources, num_sources, begin + done, kLine, line);
      for (int j = 0; j < num_outs; ++j) {
        char* target = reinterpret_cast<char*>(static_cast<Stored*>(outs[j]) + done);
        if constexpr (kStreams) {
          StreamBytes(reinterpret_cast<const char*>(line), kLineBytes, target);
        } else {
          std::memcpy(target, line, kLineBytes);
        }
      }
    }
    const int64_t rest = count - done;
    if (rest != 0) {
      Combine(sources, num_sources, begin + done, rest, line);
      for (int j = 0; j < num_outs; ++j)
        std::memcpy(static_cast<Stored*>(outs[j]) + done, line, rest * sizeof(Stored));
    }
    if (kStreams) FinishStreaming();
  }

  static ReduceFunction Find(ResultSize size) {
    return size == ResultSize::kStreamed ? Run<true> : Run<false>;
  }
};

template <typename Type>
ReduceFunction FindNumeric(ReduceKind kind, ResultSize size) {
  switch (kind) {
    case ReduceKind::kSum:
      return Reduction<Type, Sum, false>::Find(size);
    case ReduceKind::kMax:
      return Reduction<Type, Max, false>::Find(size);
    case ReduceKind::kMin:
      return Reduction<Type, Min, false>::Find(size);
    case ReduceKind::kProd:
      return Reduction<Type, Prod, false>::Find(size);
    case ReduceKind::kMean:
      return Reduction<Type, Sum, true>::Find(size);
  }
  return nullptr;
}

template <typename T>
ReduceFunction FindInteger(ReduceKind kind, ResultSize size) {
  return kind == ReduceKind::kMean ? nullptr : FindNumeric<Wrapping<T>>(kind, size);
}

ReduceFunction FindBool(ReduceKind kind, ResultSize size) {
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMax:
      return Reduction<Bool, Or, false>::Find(size);
    case ReduceKind::kMin:
    case ReduceKind::kProd:
      return Reduction<Bool, And, false>::Find(size);
    case ReduceKind::kMean:
      return nullptr;
  }
  return nullptr;
}

bool IsBool(DLDataType dtype) {
  return dtype.code == kDLBool || (dtype.code == kDLUInt && dtype.bits == 1);
}

ReduceFunction FindScalarFunction(DLDataType dtype, ReduceKind kind, ResultSize size) {
  if (IsBool(dtype)) return FindBool(kind, size);
  if (dtype.code == kDLBfloat && dtype.bits == 16) return FindNumeric<BFloat16>(kind, size);
  if (dtype.code == kDLFloat8_e4m3fn) return FindNumeric<Float8E4M3FN>(kind, size);
  if (dtype.code == kDLFloat8_e5m2) return FindNumeric<Float8E5M2>(kind, size);
  if (dtype.code == kDLFloat) {
    if (dtype.bits == 16) return FindNumeric<Float16>(kind, size);
    if (dtype.bits == 32) return FindNumeric<Plain<float>>(kind, size);
    if (dtype.bits == 64) return FindNumeric<Plain<double>>(kind, size);
  }
  if (dtype.code == kDLInt) {
    if (dtype.bits == 8) return FindInteger<int8_t>(kind, size);
    if (dtype.bits == 16) return FindInteger<int16_t>(kind, size);
    if (dtype.bits == 32) return FindInteger<int32_t>(kind, size);
    if (dtype.bits == 64) return FindInteger<int64_t>(kind, size);
  }
  if (dtype.code == kDLUInt) {
    if (dtype.bits == 8) return FindInteger<uint8_t>(kind, size);
    if (dtype.bits == 16) return FindInteger<uint16_t>(kind, size);
    if (dtype.bits == 32) return FindInteger<uint32_t>(kind, size);
    if (dtype.bits == 64) return FindInteger<uint64_t>(kind, size);
  }
  return nullptr;
}

}  // namespace

ResultSize ResultSizeOf(int64_t num_bytes) {
  return num_bytes < kStreamedBytes ? ResultSize::kCached : ResultSize::kStreamed;
}

ReduceFunction FindReduceFunction(DLDataType dtype, ReduceKind kind, ResultSize size) {
  const ReduceFunction found = dtype.lanes == 1 ? FindScalarFunction(dtype, kind, size) : nullptr;
  if (found != nullptr) return found;
  const bool integral =
      IsBool(dtype) || ((dtype.code == kDLInt || dtype.code == kDLUInt) && dtype.bits >= 8);
  if (kind == ReduceKind::kMean && integral) {
    TVM_FFI_THROW(TypeError) << "the mean of " << tvm::ffi::DLDataTypeToString(dtype)
                             << " tensors is not defined; reduce with sum, or cast to float first";
  }
  TVM_FFI_THROW(TypeError) << "tensors of dtype " << tvm::ffi::DLDataTypeToString(dtype)
                           << " cannot be reduced; cast to a float, integer or bool type first";
  TVM_FFI_UNREACHABLE();
}

}  // namespace distir::runtime
