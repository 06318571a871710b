/*!
 * \file runtime/stored_float.h
 * \brief How floats lie in memory (Stored) and in what type they are computed with (Accumulator).
 *
 * Example: Float16::Store(Float16::Load(a) + Float16::Load(b)) rounds once.
 */
#ifndef DISTIR_RUNTIME_STORED_FLOAT_H_
#define DISTIR_RUNTIME_STORED_FLOAT_H_

#include <cstdint>

#include "runtime/float8.h"
#include "runtime/half_precision.h"

namespace distir::runtime {

template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static Accumulator Load(Stored v) { return v; }
  static Stored Store(Accumulator v) { return v; }
};

struct Float16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Load(uint16_t v) { return HalfToFloat(v); }
  static uint16_t Store(float v) { return FloatToHalf(v); }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Load(uint16_t v) { return BFloat16ToFloat(v); }
  static uint16_t Store(float v) { return FloatToBFloat16(v); }
};

struct Float8E4M3FN {
  using Stored = uint8_t;
  using Accumulator = float;
  static float Load(uint8_t v) { return Float8E4M3FNToFloat(v); }
  static uint8_t Store(float v) { return FloatToFloat8E4M3FN(v); }
};

struct Float8E5M2 {
  using Stored = uint8_t;
  using Accumulator = float;
  static float Load(uint8_t v) { return Float8E5M2ToFloat(v); }
  static uint8_t Store(float v) { return FloatToFloat8E5M2(v); }
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_STORED_FLOAT_H_
