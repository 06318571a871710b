/*!
 * \file runtime/kernels/contraction.h
 * \brief Plans a contraction of two tensors as products of matrices.
 *
 * A contraction is a list of axes, each with its extent and the distance of its neighbours in both
 * operands and in the result, 0 where a tensor lacks the axis. One axis of each role makes the
 * matrices: rows (m, of a and c), columns (n, of b and c), contracted (k, of a and b); the others
 * are loops around them. Axes that lie one in the other in all tensors are one axis.
 *
 * Example: "bsd,dn->bsn" on row-major tensors has m = (b, s), n and k = d, and no loops.
 */
#ifndef DISTIR_RUNTIME_KERNELS_CONTRACTION_H_
#define DISTIR_RUNTIME_KERNELS_CONTRACTION_H_

#include <array>
#include <cstdint>
#include <vector>

namespace distir::runtime {

/*! \brief The tensors of a contraction, as indices of strides. */
enum Operand { kLeft, kRight, kResult };

struct ContractionAxis {
  int64_t extent = 1;
  /*! \brief Elements between neighbours, by Operand. */
  std::array<int64_t, 3> strides = {0, 0, 0};
};

struct ContractionPlan {
  ContractionAxis m, n, k;
  /*! \brief Further axes of the result. */
  std::vector<ContractionAxis> loops;
  /*! \brief Further axes that are summed over. */
  std::vector<ContractionAxis> sums;
  /*! \brief Tensors that must be copied first (the result: afterwards), since BLAS cannot take
   * their matrices; by Operand. */
  std::array<bool, 3> is_copied = {false, false, false};
};

/*!
 * \brief The plan; axes have extents of at least 1.
 * \param may_copy Whether a tensor may be copied so that there are larger matrices; if not, one is
 *        copied only where there is no other way.
 */
ContractionPlan PlanContraction(std::vector<ContractionAxis> axes, bool may_copy = true);

/*! \brief The axes of a tensor, with its strides and those of a dense copy. */
struct CopyAxes {
  std::vector<int64_t> extents;
  std::vector<int64_t> tensor_strides;
  std::vector<int64_t> copy_strides;
};

/*! \brief Lets the plan have a dense copy in place of a tensor; the copy's matrix is innermost. */
CopyAxes UseDenseCopy(ContractionPlan* plan, Operand operand);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_KERNELS_CONTRACTION_H_
