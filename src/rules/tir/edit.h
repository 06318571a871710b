/*!
 * \file rules/tir/edit.h
 * \brief Resizes a kernel, with a proof that it stays within its buffers.
 *
 * Loops and buffers are resized by a rule, which may be wrong: a user may have stated it. So every
 * access that an edit concerns is proven anew, with TVM's integer analysis: those of resized
 * dimensions, and those by iterators that run over other extents. All others are as safe as they
 * were. Example, loops i and j of 64 and 256 and W of (64, 32), all to be in 4 parts along j:
 *
 *     for i, j in grid(64, 64): W[i, j // 8]       W (64, 8): 0 <= j // 8 < 8 holds
 *     for i, j in grid(64, 256): W[i, j // 8]      W (64, 8): refused
 */
#ifndef DISTIR_RULES_TIR_EDIT_H_
#define DISTIR_RULES_TIR_EDIT_H_

#include <string>

#include "ir/tir_node.h"

namespace distir::rules {

namespace ffi = tvm::ffi;

/*!
 * \brief The edited copy of a kernel.
 * \param what For messages, what is done to it: "kernel `k` cut by its rule \"n -> n\"".
 * \throws ValueError saying `what`, the loops, and the access that may leave its buffer.
 */
ir::PrimFunc EditChecked(const std::string& what, const ir::PrimFunc& function,
                         const ir::KernelEdit& edit, const ir::Node& attrs);

}  // namespace distir::rules
#endif  // DISTIR_RULES_TIR_EDIT_H_
