/*!
 * \file runtime/kernels/floats/half_precision.h
 * \brief Conversions between float32 and the two 16-bit float formats, on bit patterns.
 *
 * Rounding is to nearest, ties to even; NaN stays NaN, infinities and subnormals are exact. All are
 * written without branches that depend on the value, so that loops over them vectorise on any CPU.
 *
 * Formats: binary16 of IEEE 754-2008; bfloat16 is the upper half of binary32.
 */
#ifndef DISTIR_RUNTIME_KERNELS_FLOATS_HALF_PRECISION_H_
#define DISTIR_RUNTIME_KERNELS_FLOATS_HALF_PRECISION_H_

#include <cstdint>
#include <cstring>

namespace distir::runtime {

inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float BFloat16ToFloat(uint16_t bits) {
  return FloatFromBits(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x0040u;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return static_cast<uint16_t>(is_nan ? quiet_nan : rounded);
}

inline float HalfToFloat(uint16_t half) {
  // Exponent and mantissa move to float32's place, where the value is 2^112 too small; the
  // multiplication mends normal and subnormal numbers alike. All-ones exponents are set by hand.
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFFu) << 13;
  const uint32_t scaled = FloatBits(FloatFromBits(magnitude) * FloatFromBits(0x77800000u));
  const uint32_t special = magnitude | 0x7F800000u;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  return FloatFromBits((magnitude >= 0x0F800000u ? special : scaled) | sign);
}

inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Normal results: rebias the exponent by -112 and round the 13 dropped bits; a carry out of the
  // mantissa goes into the exponent, which is what rounding up to the next power of two means.
  const uint32_t normal = (magnitude + 0xC8000FFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 makes the float adder align and round to units of 2^-24.
  const uint32_t subnormal = FloatBits(FloatFromBits(magnitude) + 0.5f) - 0x3F000000u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477FF000u ? 0x7C00u : half;  // 65520 and more round to infinity
  half = magnitude > 0x7F800000u ? 0x7E00u : half;   // NaN
  return static_cast<uint16_t>(half | sign);
}

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_FLOATS_HALF_PRECISION_H_
