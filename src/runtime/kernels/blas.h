/*!
 * \file runtime/kernels/blas.h
 * \brief Products of strided matrices in host memory, by a BLAS library if there is one.
 *
 * The library is opened at the first product, by the path that SetBlasLibrary was given, and used
 * with one thread per call: who calls divides the work. Without it, and for sizes that its 32-bit
 * integers cannot state, plain loops compute the same.
 */
#ifndef DISTIR_RUNTIME_KERNELS_BLAS_H_
#define DISTIR_RUNTIME_KERNELS_BLAS_H_

#include <cstdint>
#include <string>

namespace distir::runtime {

/*!
 * \brief The shared library of a BLAS with 32-bit integers, OpenBLAS or MKL, and what stands before
 *        the names of its functions; counts before the first product.
 */
void SetBlasLibrary(const std::string& path, const std::string& prefix);

/*! \brief A function of the library by its name without the prefix, also of its LAPACK; null where
 * there is none. */
void* FindBlasFunction(const std::string& name);

/*! \brief Sizes of c (m, n) = a (m, k) b (k, n), and how many elements lie between neighbours. */
struct MatrixProduct {
  int64_t m, n, k;
  int64_t a_m, a_k;
  int64_t b_k, b_n;
  int64_t c_m, c_n;
};

/*! \brief True if BLAS takes a matrix: a side of it lies contiguous, or has size 1. */
inline bool IsBlasMatrix(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  return rows == 1 || columns == 1 || row_stride == 1 || column_stride == 1;
}

/*! \brief Computes c = a b, or adds the product to c. All sizes are at least 1. */
template <typename T>
void MultiplyMatrices(const MatrixProduct& sizes, const T* a, const T* b, T* c, bool accumulate);

extern template void MultiplyMatrices(const MatrixProduct&, const float*, const float*, float*,
                                      bool);
extern template void MultiplyMatrices(const MatrixProduct&, const double*, const double*, double*,
                                      bool);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_BLAS_H_
