/*!
 * \file unfuse/hoisted_buffers.h
 * \brief Moves buffers that a kernel allocates by a statement (T.alloc_buffer) to its block
 * (T.sblock_alloc_buffer), where TVM writes them and rules of kernels expect them.
 */
#ifndef DISTIR_UNFUSE_HOISTED_BUFFERS_H_
#define DISTIR_UNFUSE_HOISTED_BUFFERS_H_

#include "ir/node.h"

namespace distir::unfuse {

/*! \brief The module with such kernels rewritten; the same module where there are none. Buffers
 * with annotations, and those that are allocated within loops, stay where they are. */
ir::IRModule HoistBuffers(const ir::IRModule& mod);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_HOISTED_BUFFERS_H_
