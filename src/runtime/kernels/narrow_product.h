/*!
 * \file runtime/kernels/narrow_product.h
 * \brief Products of a matrix of few rows, whose other matrix is read once from where it lies.
 *
 * BLAS copies both matrices into blocks first, which takes longer than few rows are multiplied: a
 * step of decoding multiplies one row per sequence by all weights, and the queries of one group by
 * all keys that are cached.
 */
#ifndef DISTIR_RUNTIME_KERNELS_NARROW_PRODUCT_H_
#define DISTIR_RUNTIME_KERNELS_NARROW_PRODUCT_H_

#include "runtime/kernels/blas.h"

namespace distir::runtime {

/*! \brief True for few rows, and another matrix of which one side lies contiguous. */
bool IsNarrowProduct(const MatrixProduct& sizes);

/*! \brief Computes c = a b, or adds the product to c. */
void MultiplyNarrow(const MatrixProduct& sizes, const float* a, const float* b, float* c,
                    bool accumulate);
void MultiplyNarrow(const MatrixProduct& sizes, const double* a, const double* b, double* c,
                    bool accumulate);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_NARROW_PRODUCT_H_
