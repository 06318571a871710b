/*!
 * \file unfuse/kernel_parts.h
 * \brief Splits a fused kernel into its reduction and its epilogue.
 *
 *     fused(x, w, b, out):                        reduction(x, w, p):
 *       p[i, j] += x[i, k] * w[k, j]        ->      p[i, j] += x[i, k] * w[k, j]
 *       out[i, j] = p[i, j] + b[j]                epilogue(p, b, out):
 *                                                   out[i, j] = p[i, j] + b[j]
 *
 * The fused kernel needs k replicated: with k sharded, every device would add the bias. In the
 * first of the two kernels k is a reduction factor.
 */
#ifndef DISTIR_UNFUSE_KERNEL_PARTS_H_
#define DISTIR_UNFUSE_KERNEL_PARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "ir/tir_node.h"
#include "unfuse/statements.h"

namespace distir::unfuse {

namespace ffi = tvm::ffi;

struct KernelParts {
  ir::PrimFunc reduction, epilogue;
  std::vector<size_t> of_reduction;  // the operands that it takes
  std::vector<size_t> of_epilogue;   // the same, behind the result of the reduction
  std::vector<SizeOf> shape;         // of the result of the reduction
  DLDataType dtype;                  // of the same
};

/*!
 * \brief The parts of a kernel in which elementwise statements follow a reduction and need its
 * complete result; nullopt for every other kernel.
 *
 * A statement that follows and commutes with the reduction, as a product with a number does, stays
 * with it.
 */
std::optional<KernelParts> SplitKernel(const std::string& name, const ir::PrimFunc& kernel);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_KERNEL_PARTS_H_
