/*!
 * \file runtime/kernels/einsum.h
 * \brief Contractions of two tensors in host memory.
 */
#ifndef DISTIR_RUNTIME_KERNELS_EINSUM_H_
#define DISTIR_RUNTIME_KERNELS_EINSUM_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include <array>
#include <vector>

#include "runtime/kernels/contraction.h"

namespace distir::runtime {

/*!
 * \brief The axes of a contraction, one per label, with the strides of row-major tensors.
 * \param tensors By Operand.
 * \throws ValueError for subscripts or shapes that are none of a contraction.
 */
std::vector<ContractionAxis> ReadContractionAxes(
    const tvm::ffi::String& subscripts, const std::array<tvm::ffi::TensorView, 3>& tensors);

/*!
 * \brief out = the contraction of a and b, as in Einsum(a, b, "bsd,dn->bsn", out). All are
 *        contiguous; float32 and float64 are computed as they are, smaller floats in float32.
 * \throws ValueError for subscripts, shapes or dtypes that are none of a contraction.
 */
void Einsum(tvm::ffi::TensorView a, tvm::ffi::TensorView b, const tvm::ffi::String& subscripts,
            tvm::ffi::TensorView out);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_EINSUM_H_
