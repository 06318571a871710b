#include "reduction_on_host.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "on_host.h"
#include "runtime/communicators/nccl/abi.h"
#include "runtime/kernels/floats/half_precision.h"

namespace on_host {

using namespace distir::runtime;
using namespace distir::runtime::nccl;

namespace {

float Float8ToFloat(uint8_t bits, int exponent_bits) {
  const int mantissa_bits = 7 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7F) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  if (exponent_bits == 4 && (bits & 0x7F) == 0x7F) return NAN;
  if (exponent_bits == 5 && exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  const float fraction = static_cast<float>(mantissa) / static_cast<float>(1 << mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

uint8_t FloatToFloat8(float value, int exponent_bits) {
  uint8_t best = 0;
  float distance = INFINITY;
  for (int bits = 0; bits < 256; ++bits) {
    const float candidate = Float8ToFloat(static_cast<uint8_t>(bits), exponent_bits);
    const float away = std::fabs(candidate - value);
    if (away < distance || (away == distance && bits % 2 == 0 && best % 2 == 1)) {
      best = static_cast<uint8_t>(bits);
      distance = away;
    }
  }
  return best;
}

// Every step of a reduction is stored, as a ring stores what it passes on.
template <typename T, typename Load, typename Store>
void Reduce(const std::vector<const char*>& sources, size_t begin, size_t count, int operation,
            char* out, Load load, Store store) {
  const bool wrong = Faulty("wrong reduction");
  using Result = decltype(load(T{}));
  const Result part = load(store(static_cast<Result>(1) / static_cast<Result>(sources.size())));
  for (size_t i = 0; i < count; ++i) {
    auto at = [&](const char* source) {
      T stored;
      std::memcpy(&stored, source + (begin + i) * sizeof(T), sizeof(T));
      const Result value = load(stored);
      return operation == kNcclAvg ? load(store(value * part)) : value;
    };
    Result result = at(sources[0]);
    for (size_t j = 1; j < sources.size(); ++j) {
      const Result value = at(sources[j]);
      if (operation == kNcclProd) result = result * value;
      if (operation == kNcclMax) result = result > value ? result : value;
      if (operation == kNcclMin) result = result < value ? result : value;
      if (operation == kNcclSum || operation == kNcclAvg) result = result + value;
      result = load(store(result));
    }
    if (wrong) result = result + static_cast<Result>(1);
    const T stored = store(result);
    std::memcpy(out + i * sizeof(T), &stored, sizeof(T));
  }
}

}  // namespace

int BytesOf(int dtype) {
  switch (dtype) {
    case kNcclInt8:
    case kNcclUint8:
    case kNcclFloat8e4m3:
    case kNcclFloat8e5m2:
      return 1;
    case kNcclFloat16:
    case kNcclBfloat16:
      return 2;
    case kNcclInt32:
    case kNcclUint32:
    case kNcclFloat32:
      return 4;
    default:
      return 8;
  }
}

void Reduce(const std::vector<const char*>& sources, size_t begin, size_t count, int dtype,
            int operation, char* out) {
  auto plain = [&](auto zero) {
    using T = decltype(zero);
    Reduce<T>(sources, begin, count, operation, out, [](T v) { return v; }, [](T v) { return v; });
  };
  auto float8 = [&](int exponent_bits) {
    Reduce<uint8_t>(
        sources, begin, count, operation, out,
        [=](uint8_t v) { return Float8ToFloat(v, exponent_bits); },
        [=](float v) { return FloatToFloat8(v, exponent_bits); });
  };
  switch (dtype) {
    case kNcclInt8:  // integers wrap around, which is defined for unsigned ones
      if (operation == kNcclSum || operation == kNcclProd) return plain(uint8_t{});
      return plain(int8_t{});
    case kNcclUint8:
      return plain(uint8_t{});
    case kNcclInt32:
      if (operation == kNcclSum || operation == kNcclProd) return plain(uint32_t{});
      return plain(int32_t{});
    case kNcclUint32:
      return plain(uint32_t{});
    case kNcclInt64:
      if (operation == kNcclSum || operation == kNcclProd) return plain(uint64_t{});
      return plain(int64_t{});
    case kNcclUint64:
      return plain(uint64_t{});
    case kNcclFloat16:
      return Reduce<uint16_t>(sources, begin, count, operation, out, HalfToFloat, FloatToHalf);
    case kNcclBfloat16:
      return Reduce<uint16_t>(sources, begin, count, operation, out, BFloat16ToFloat,
                              FloatToBFloat16);
    case kNcclFloat32:
      return plain(float{});
    case kNcclFloat64:
      return plain(double{});
    case kNcclFloat8e4m3:
      return float8(4);
    case kNcclFloat8e5m2:
      return float8(5);
  }
}

}  // namespace on_host
