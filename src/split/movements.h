/*!
 * \file split/movements.h
 * \brief Kernels that join or split tensors as R.concat and R.split (split/kernel_pieces.h).
 */
#ifndef DISTIR_SPLIT_MOVEMENTS_H_
#define DISTIR_SPLIT_MOVEMENTS_H_

#include "ir/node.h"

namespace distir {
namespace split {

ir::IRModule LiftMovements(const ir::IRModule& mod);

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_MOVEMENTS_H_
