/*!
 * \file runtime/kernels/convolution/formats.h
 * \brief Numbers as tensors of a convolution have them, and the type they are computed in.
 *
 * Small integers are multiplied as float32, by a BLAS: sums of so few products that each is exact
 * are then added as integers.
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONVOLUTION_FORMATS_H_
#define DISTIR_RUNTIME_KERNELS_CONVOLUTION_FORMATS_H_

#include <cstdint>
#include <type_traits>

#include "runtime/kernels/floats/stored_float.h"

namespace distir::runtime {

/*! \brief An integer of 8 bits; float32 has all integers of up to 24 bits. */
template <typename Int>
struct SmallInteger {
  using Stored = Int;
  using Accumulator = float;
  static float Load(Int v) { return static_cast<float>(v); }
};

/*! \brief Products of which a sum is exact; 0 where sums are rounded, and none is. */
template <typename Format>
constexpr int64_t kExactTerms = 0;
template <>
inline constexpr int64_t kExactTerms<SmallInteger<int8_t>> = (1 << 24) / (128 * 128);
template <>
inline constexpr int64_t kExactTerms<SmallInteger<uint8_t>> = (1 << 24) / (255 * 255);

/*! \brief True if operands have the type that is computed with. */
template <typename In>
constexpr bool kReadsAsStored = std::is_same_v<typename In::Stored, typename In::Accumulator>;

/*! \brief True if results have it. */
template <typename In, typename Out>
constexpr bool kWritesAsComputed = std::is_same_v<typename Out::Stored, typename In::Accumulator>;

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONVOLUTION_FORMATS_H_
