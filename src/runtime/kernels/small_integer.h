/*!
 * \file runtime/kernels/small_integer.h
 * \brief Integers of 8 bits that are multiplied as float32.
 *
 * A BLAS multiplies them: sums of so few products that each is exact are then added as integers.
 */
#ifndef DISTIR_RUNTIME_KERNELS_SMALL_INTEGER_H_
#define DISTIR_RUNTIME_KERNELS_SMALL_INTEGER_H_

#include <cstdint>

namespace distir::runtime {

/*! \brief An integer of 8 bits; float32 has all integers of up to 24 bits. */
template <typename Int>
struct SmallInteger {
  using Stored = Int;
  using Accumulator = float;
  static float Load(Int v) { return static_cast<float>(v); }
};

/*! \brief Products of integers of up to these sizes of which a sum is exact in float32. */
constexpr int64_t ExactTerms(int64_t left, int64_t right) {
  return (int64_t{1} << 24) / (left * right);
}

/*! \brief Products of which a sum is exact; 0 where sums are rounded, and none is. */
template <typename Format>
constexpr int64_t kExactTerms = 0;
template <>
inline constexpr int64_t kExactTerms<SmallInteger<int8_t>> = ExactTerms(128, 128);
template <>
inline constexpr int64_t kExactTerms<SmallInteger<uint8_t>> = ExactTerms(255, 255);

/*! \brief Wraps around, as integers of a tensor do. */
inline int32_t WrappingSum(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_SMALL_INTEGER_H_
