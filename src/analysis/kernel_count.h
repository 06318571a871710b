/*!
 * \file analysis/kernel_count.h
 * \brief Counts the operations and bytes of one run of a TIR kernel from its loops.
 *
 * A floating-point operation is an addition, subtraction, multiplication, division, remainder,
 * minimum, maximum, absolute value or rounding of numbers of a floating-point type; exp, log, sqrt,
 * tanh and their like are counted apart, as XLA's cost analysis does. Integers, comparisons, casts
 * and selections count nothing, nor do calls of constants alone. A sum of n numbers is n additions,
 * the first of them to zero; so a matrix product of (m, k) and (k, n) is 2 m n k operations. Where
 * a condition depends on an index, its more expensive side counts.
 *
 * An operation counts for the narrowest type that its operands were stored in: a product of float16
 * numbers that is added up in float32 is work of float16 units.
 *
 * Of every buffer that is a parameter, memory traffic is what must come from memory or go there at
 * least once: all loads of it, or all of its elements where that is less. Intermediate buffers of
 * the kernel are none.
 */
#ifndef DISTIR_ANALYSIS_KERNEL_COUNT_H_
#define DISTIR_ANALYSIS_KERNEL_COUNT_H_

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/tir_node.h"

namespace distir::analysis {

namespace ffi = tvm::ffi;

/*! \brief Operations by the element type that they count for, as (code, bits) of DLPack. */
using Operations = std::map<std::pair<int, int>, double>;

struct KernelCount {
  Operations operations;
  double transcendentals = 0;
  /*! \brief Bytes per parameter; 0 for scalars. */
  std::vector<double> bytes_read, bytes_written;
  /*! \brief Reason why the count is not exact; empty if it is. */
  std::string unknown;
};

/*! \brief The values of symbolic sizes, by variable. */
using SizeValues = std::unordered_map<const ffi::Object*, int64_t>;

/*! \brief True if a size of a parameter is symbolic, so that counts differ between calls. */
bool HasSymbolicSizes(const ir::PrimFunc& kernel);

/*!
 * \brief Counts one call of a kernel.
 * \param arguments Those of the call: tensors' types state symbolic sizes of the kernel.
 */
KernelCount CountKernel(const ir::PrimFunc& kernel, const ir::NodeArray<ir::Expr>& arguments);

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_KERNEL_COUNT_H_
