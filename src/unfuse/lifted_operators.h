/*!
 * \file unfuse/lifted_operators.h
 * \brief Replaces calls of kernels by the operators that they contain (unfuse/kernel_pieces.h).
 */
#ifndef DISTIR_UNFUSE_LIFTED_OPERATORS_H_
#define DISTIR_UNFUSE_LIFTED_OPERATORS_H_

#include "ir/node.h"

namespace distir::unfuse {

ir::IRModule LiftOperators(const ir::IRModule& mod);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_LIFTED_OPERATORS_H_
