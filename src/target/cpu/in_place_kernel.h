/*!
 * \file target/cpu/in_place_kernel.h
 * \brief Finds kernels whose result may take the memory of an operand.
 */
#ifndef DISTIR_TARGET_CPU_IN_PLACE_KERNEL_H_
#define DISTIR_TARGET_CPU_IN_PLACE_KERNEL_H_

#include "ir/tir_node.h"

namespace distir::target {

/*!
 * \brief True if a kernel reads each element of an operand only in the statement that computes the
 * same element of its result, the last parameter, and computes it once. Both are of one shape.
 *
 *     y[i, j] = x[i, j] * scale[j]    // x: yes; scale: no
 */
bool CanWriteToOperand(const ir::PrimFunc& kernel, size_t operand);

}  // namespace distir::target
#endif  // DISTIR_TARGET_CPU_IN_PLACE_KERNEL_H_
