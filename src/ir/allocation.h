/*!
 * \file ir/allocation.h
 * \brief Reads statements of kernels that allocate buffers.
 */
#ifndef DISTIR_IR_ALLOCATION_H_
#define DISTIR_IR_ALLOCATION_H_

#include "ir/tir_node.h"

namespace distir::ir {

/*! \brief The buffer that a statement allocates; null of other statements, and of allocations with
 * annotations. */
Var AllocatedBuffer(const Stmt& stmt);

}  // namespace distir::ir
#endif  // DISTIR_IR_ALLOCATION_H_
