/*!
 * \file runtime/kernels/floats/float8.h
 * \brief Conversions between float32 and two 8-bit float formats, on bit patterns.
 *
 * Rounding is to nearest, ties to even; subnormals are exact. e5m2 has infinities, to which large
 * numbers round; e4m3fn has none, and what is larger than its largest number becomes NaN.
 *
 * Formats: Micikevicius et al., FP8 Formats for Deep Learning, 2022 (arXiv 2209.05433).
 */
#ifndef DISTIR_RUNTIME_KERNELS_FLOATS_FLOAT8_H_
#define DISTIR_RUNTIME_KERNELS_FLOATS_FLOAT8_H_

#include <cstdint>

#include "runtime/kernels/floats/half_precision.h"

namespace distir::runtime {

/*! \brief A format with so many bits of mantissa, and of exponent what is left of seven. */
template <int kMantissaBits>
struct Float8Bits {
  static constexpr int kBias = (1 << (6 - kMantissaBits)) - 1;
  static constexpr int kDropped = 23 - kMantissaBits;  // bits of float32's mantissa
  static constexpr uint32_t kExponentDifference = 127 - kBias;
  static constexpr uint32_t kSmallestNormal = (kExponentDifference + 1) << 23;
  // A number whose last bit is worth as much as that of the subnormal numbers.
  static constexpr uint32_t kSubnormalMagic = (kExponentDifference + 1 + kDropped) << 23;

  /*! \brief The value of a magnitude that is neither infinite nor NaN. */
  static float Load(uint8_t magnitude) {
    // In float32's place the value is a power of two too small, also a subnormal one.
    const float small = FloatFromBits(static_cast<uint32_t>(magnitude) << kDropped);
    return small * FloatFromBits((127 + kExponentDifference) << 23);
  }

  /*! \brief The rounded bits of a magnitude that does not overflow. */
  static uint32_t Store(uint32_t magnitude) {
    const uint32_t half = (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u);
    const uint32_t normal = (magnitude - (kExponentDifference << 23) + half) >> kDropped;
    const float aligned = FloatFromBits(magnitude) + FloatFromBits(kSubnormalMagic);
    return magnitude < kSmallestNormal ? FloatBits(aligned) - kSubnormalMagic : normal;
  }
};

inline float Float8E4M3FNToFloat(uint8_t bits) {
  const uint8_t magnitude = bits & 0x7Fu;
  const float value = magnitude == 0x7Fu ? FloatFromBits(0x7FC00000u)  // NaN
                                         : Float8Bits<3>::Load(magnitude);
  return (bits & 0x80u) != 0 ? -value : value;
}

inline uint8_t FloatToFloat8E4M3FN(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Half way from 448, the largest number, to the next one, 464 still rounds to it.
  const uint32_t stored = magnitude > 0x43E80000u ? 0x7Fu : Float8Bits<3>::Store(magnitude);
  return static_cast<uint8_t>(stored | (bits >> 24 & 0x80u));
}

inline float Float8E5M2ToFloat(uint8_t bits) {
  return HalfToFloat(static_cast<uint16_t>(bits << 8));
}

inline uint8_t FloatToFloat8E5M2(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t stored = magnitude >= 0x47700000u ? 0x7Cu  // 61440 and more round to infinity
                                             : Float8Bits<2>::Store(magnitude);
  stored = magnitude > 0x7F800000u ? 0x7Eu : stored;  // NaN
  return static_cast<uint8_t>(stored | (bits >> 24 & 0x80u));
}

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_FLOATS_FLOAT8_H_
