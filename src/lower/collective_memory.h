/*!
 * \file lower/collective_memory.h
 * \brief Which operands and results of collectives get memory of the runtime instead of TVM's.
 */
#ifndef DISTIR_LOWER_COLLECTIVE_MEMORY_H_
#define DISTIR_LOWER_COLLECTIVE_MEMORY_H_

#include "ir/node.h"

namespace distir {
namespace lower {

/*!
 * \brief Whether a type is of tensors of at least 16384 elements, or of a symbolic number. Smaller
 * ones stay with their neighbours in the memory that TVM plans.
 */
bool IsLargeTensor(const ir::Type& type);

}  // namespace lower
}  // namespace distir
#endif  // DISTIR_LOWER_COLLECTIVE_MEMORY_H_
