/*!
 * \file split/kernel_parts.h
 * \brief A fused kernel as two: its reduction, and the epilogue on the result of that.
 *
 *     fused(x, w, b, out):                        reduction(x, w, p):
 *       p[i, j] += x[i, k] * w[k, j]        ->      p[i, j] += x[i, k] * w[k, j]
 *       out[i, j] = p[i, j] + b[j]                epilogue(p, b, out):
 *                                                   out[i, j] = p[i, j] + b[j]
 *
 * Of the fused kernel every device needs all of k: the bias would be added once per device. Of the
 * first of the two k is a reduction factor.
 */
#ifndef DISTIR_SPLIT_KERNEL_PARTS_H_
#define DISTIR_SPLIT_KERNEL_PARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "ir/tir_node.h"
#include "split/statements.h"

namespace distir {
namespace split {

namespace ffi = tvm::ffi;

struct KernelParts {
  ir::PrimFunc reduction, epilogue;
  std::vector<size_t> of_reduction;  // the operands that it takes
  std::vector<size_t> of_epilogue;   // the same, behind the result of the reduction
  std::vector<SizeOf> shape;         // of the result of the reduction
  DLDataType dtype;                  // of the same
};

/*!
 * \brief The parts of a kernel of which a reduction is needed whole for what follows it element by
 * element; nullopt for every other kernel.
 *
 * What follows and commutes with the reduction, as a product with a number does, stays with it.
 */
std::optional<KernelParts> SplitKernel(const std::string& name, const ir::PrimFunc& kernel);

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_KERNEL_PARTS_H_
