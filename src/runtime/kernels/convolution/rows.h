/*!
 * \file runtime/kernels/convolution/rows.h
 * \brief Sums over rows, compiled for several generations of CPUs.
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONVOLUTION_ROWS_H_
#define DISTIR_RUNTIME_KERNELS_CONVOLUTION_ROWS_H_

#include <cstdint>

namespace distir::runtime {

/*! \brief to[i] = sum over t < num of factors[t] * from[t][i]. */
void SumOfScaled(int64_t count, int64_t num, const float* factors, const float* const* from,
                 float* to);
void SumOfScaled(int64_t count, int64_t num, const double* factors, const double* const* from,
                 double* to);

/*! \brief to[i] = sum over t < num of factors[t][i] * from[t][i]. */
void SumOfProducts(int64_t count, int64_t num, const float* const* factors,
                   const float* const* from, float* to);
void SumOfProducts(int64_t count, int64_t num, const double* const* factors,
                   const double* const* from, double* to);

/*! \brief to[i * distance] += from[i]. */
void AddTo(int64_t count, const float* from, int64_t distance, float* to);
void AddTo(int64_t count, const double* from, int64_t distance, double* to);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONVOLUTION_ROWS_H_
