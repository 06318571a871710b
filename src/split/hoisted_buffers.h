/*!
 * \file split/hoisted_buffers.h
 * \brief Moves buffers that a kernel allocates by a statement (T.alloc_buffer) to its block
 * (T.sblock_alloc_buffer), where TVM writes them and rules of kernels expect them.
 */
#ifndef DISTIR_SPLIT_HOISTED_BUFFERS_H_
#define DISTIR_SPLIT_HOISTED_BUFFERS_H_

#include "ir/node.h"

namespace distir {
namespace split {

/*! \brief The module with such kernels rewritten; the same module where there are none. Buffers
 * with annotations, and those that are allocated within loops, stay where they are. */
ir::IRModule HoistBuffers(const ir::IRModule& mod);

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_HOISTED_BUFFERS_H_
