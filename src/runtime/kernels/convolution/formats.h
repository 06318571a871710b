/*!
 * \file runtime/kernels/convolution/formats.h
 * \brief Compares the number format of a convolution's tensors with the type that it computes in.
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONVOLUTION_FORMATS_H_
#define DISTIR_RUNTIME_KERNELS_CONVOLUTION_FORMATS_H_

#include <type_traits>

#include "runtime/kernels/floats/stored_float.h"
#include "runtime/kernels/small_integer.h"

namespace distir::runtime {

/*! \brief True if operands have the type that is computed with. */
template <typename In>
constexpr bool kReadsAsStored = std::is_same_v<typename In::Stored, typename In::Accumulator>;

/*! \brief True if results have it. */
template <typename In, typename Out>
constexpr bool kWritesAsComputed = std::is_same_v<typename Out::Stored, typename In::Accumulator>;

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONVOLUTION_FORMATS_H_
