/*!
 * \file runtime/kernels/lapack.h
 * \brief Matrix decompositions in host memory, by the LAPACK in the BLAS library.
 *
 * Each function takes stacks of matrices, [.., m, n], row after row, of float32 or float64, and
 * writes its results into the tensors that come last, as R.call_dps_packed calls it. Where a result
 * is called `info`, it is 0 for each matrix that was decomposed (LAPACK Users' Guide, 3rd ed.).
 *
 * Worked example: R.call_dps_packed("distir.lapack.potrf", (a, R.str("L")), out_ty=[a's
 * type, R.Tensor((batch,), "int32")]) is the lower triangle of each Cholesky factor.
 */
#ifndef DISTIR_RUNTIME_KERNELS_LAPACK_H_
#define DISTIR_RUNTIME_KERNELS_LAPACK_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

namespace distir::runtime {

using tvm::ffi::String;
using tvm::ffi::TensorView;

/*! \brief Cholesky factors; `uplo`, "L" or "U", is the triangle that is read and written. */
void Potrf(TensorView a, const String& uplo, TensorView factor, TensorView info);
/*! \brief L and U in one matrix, and the rows that were exchanged, counted from 1. */
void Getrf(TensorView a, TensorView lu, TensorView pivots, TensorView info);
/*! \brief X of op(A) X = B or X op(A) = B; `options` are side, triangle, op and diagonal: "LUNN".
 */
void Trsm(TensorView a, TensorView b, const String& options, TensorView x);
/*! \brief Householder vectors below R, and their factors. */
void Geqrf(TensorView a, TensorView reflectors, TensorView factors);
/*! \brief The matrix Q of Householder vectors and their factors. */
void Orgqr(TensorView reflectors, TensorView factors, TensorView q);
/*! \brief Singular values and vectors; `mode` is "A" for all vectors, "S" for the first, "N". */
void Gesdd(TensorView a, const String& mode, TensorView rest, TensorView values, TensorView u,
           TensorView vt, TensorView info);
/*! \brief Eigenvalues of symmetric matrices, ascending, and vectors in columns; `options` are "V"
 * or "N" (no vectors) and the triangle: "VL". */
void Syevd(TensorView a, const String& options, TensorView vectors, TensorView values,
           TensorView info);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_LAPACK_H_
