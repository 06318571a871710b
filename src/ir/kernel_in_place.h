/*!
 * \file ir/kernel_in_place.h
 * \brief Makes kernels write to an operand.
 */
#ifndef DISTIR_IR_KERNEL_IN_PLACE_H_
#define DISTIR_IR_KERNEL_IN_PLACE_H_

#include "ir/tir_node.h"

namespace distir::ir {

/*! \brief A kernel that writes to one of its operands in place of its result, the last parameter,
 * which it does not have. Both are of one shape. */
PrimFunc WriteToOperand(const PrimFunc& function, size_t operand);

}  // namespace distir::ir
#endif  // DISTIR_IR_KERNEL_IN_PLACE_H_
