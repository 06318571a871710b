/*!
 * \file target/gpu/matrix_form.h
 * \brief Decides from its labels if a contraction is products of matrices that lie in memory as
 * cuBLASLt takes them.
 *
 * Labels next to each other in all tensors that have them are one axis. One axis of each role makes
 * the matrices: rows, columns, contracted; others are batches. Each matrix needs one of its two
 * axes innermost in memory.
 *
 * Example: "bsd,dn->bsn" is one product with rows (b, s); "bqhd,bkhd->bhqk" is a batch of h
 * products for each of b; "bqhd,bkhd->bqkh" is none, since the result has h innermost.
 */
#ifndef DISTIR_TARGET_GPU_MATRIX_FORM_H_
#define DISTIR_TARGET_GPU_MATRIX_FORM_H_

#include "target/products/contraction.h"

namespace distir::target {

/*! \brief Reason for which a contraction has no such form; null if it has. */
const char* LacksMatrixForm(const Contraction& contraction, const ir::TensorType& result);

}  // namespace distir::target
#endif  // DISTIR_TARGET_GPU_MATRIX_FORM_H_
