/*!
 * \file split/lifted_operators.h
 * \brief Replaces calls of kernels by the operators that they contain (split/kernel_pieces.h).
 */
#ifndef DISTIR_SPLIT_LIFTED_OPERATORS_H_
#define DISTIR_SPLIT_LIFTED_OPERATORS_H_

#include "ir/node.h"

namespace distir {
namespace split {

ir::IRModule LiftOperators(const ir::IRModule& mod);

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_LIFTED_OPERATORS_H_
