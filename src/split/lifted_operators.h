/*!
 * \file split/lifted_operators.h
 * \brief Calls of kernels become the operators that are in them (split/kernel_pieces.h).
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
