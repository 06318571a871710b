/*!
 * \file runtime/stored_float.h
 * \brief How floats lie in memory (Stored) and in what type they are computed with (Accumulator).
 *
 * Example: Float16::Store(Float16::Load(a) + Float16::Load(b)) rounds once.
 */
#ifndef DISTIR_RUNTIME_STORED_FLOAT_H_
#define DISTIR_RUNTIME_STORED_FLOAT_H_

#include <cstdint>

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

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_STORED_FLOAT_H_
