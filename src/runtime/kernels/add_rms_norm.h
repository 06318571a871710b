/*!
 * \file runtime/kernels/add_rms_norm.h
 * \brief Adds a residual to rows in host memory and norms them, in one pass over each row.
 *
 * Row by row: sum += residual, rounded to the dtype; normed = sum * weight / sqrt(mean(sum^2) +
 * epsilon), computed in float32 from the rounded sum and rounded once (Zhang and Sennrich,
 * arXiv:1910.07467).
 */
#ifndef DISTIR_RUNTIME_KERNELS_ADD_RMS_NORM_H_
#define DISTIR_RUNTIME_KERNELS_ADD_RMS_NORM_H_

#include <tvm/ffi/dtype.h>

#include <cstdint>

namespace distir::runtime {

/*! \brief `sum`, `residual` and `normed` are row-major (rows, width), `weight` is (width,). */
using AddRmsNormFunction = void (*)(void* sum, const void* residual, const void* weight,
                                    int64_t rows, int64_t width, float epsilon, void* normed);

/*! \brief The kernel for float32, float16 or bfloat16. \throws TypeError for other dtypes. */
AddRmsNormFunction FindAddRmsNorm(DLDataType dtype);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_ADD_RMS_NORM_H_
