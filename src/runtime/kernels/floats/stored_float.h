/*!
 * \file runtime/kernels/floats/stored_float.h
 * \brief Floats as stored in memory (Stored), and the type they are computed in (Accumulator).
 *
 * Example: Float16::Store(Float16::Load(a) + Float16::Load(b)) rounds once.
 */
#ifndef DISTIR_RUNTIME_KERNELS_FLOATS_STORED_FLOAT_H_
#define DISTIR_RUNTIME_KERNELS_FLOATS_STORED_FLOAT_H_

#include <cstdint>

#include "runtime/kernels/floats/float8.h"
#include "runtime/kernels/floats/half_precision.h"

namespace distir::runtime {

template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static Accumulator Load(Stored v) { return v; }
  static Stored Store(Accumulator v) { return v; }
};

/*! \brief A format that is computed with in float32. */
template <typename Bits, float (*kLoad)(Bits), Bits (*kStore)(float)>
struct SmallFloat {
  using Stored = Bits;
  using Accumulator = float;
  static float Load(Bits v) { return kLoad(v); }
  static Bits Store(float v) { return kStore(v); }
};

using Float16 = SmallFloat<uint16_t, HalfToFloat, FloatToHalf>;
using BFloat16 = SmallFloat<uint16_t, BFloat16ToFloat, FloatToBFloat16>;
using Float8E4M3FN = SmallFloat<uint8_t, Float8E4M3FNToFloat, FloatToFloat8E4M3FN>;
using Float8E5M2 = SmallFloat<uint8_t, Float8E5M2ToFloat, FloatToFloat8E5M2>;

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_FLOATS_STORED_FLOAT_H_
