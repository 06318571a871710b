/*!
 * \file target/cpu/collective_memory.h
 * \brief Finds operands and results of collectives that get memory of the runtime instead of TVM's.
 */
#ifndef DISTIR_TARGET_CPU_COLLECTIVE_MEMORY_H_
#define DISTIR_TARGET_CPU_COLLECTIVE_MEMORY_H_

#include "ir/node.h"

namespace distir::target {

/*!
 * \brief True if a type is of tensors of at least 16384 elements, or of a symbolic number. Smaller
 * ones stay with their neighbours in the memory that TVM plans.
 */
bool IsLargeTensor(const ir::Type& type);

}  // namespace distir::target
#endif  // DISTIR_TARGET_CPU_COLLECTIVE_MEMORY_H_
