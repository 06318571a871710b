/*!
 * \file lower/local/stated_cut.h
 * \brief Cuts a kernel whose rule a user states.
 *
 * The rule says in how many parts the dimensions of its tensors are; the kernel's index maps say
 * which loops, and which intermediate buffers, go with them. Example, "o (g a), o g -> o (g a e)"
 * in 4 parts along g, for a kernel that unpacks 8 numbers from each word and scales 32 of them
 * alike:
 *
 *     words (64, 32) is [o, g a], loop j of 256 is [g, a, e]  ->  g in 4: words (64, 8), j of 64
 */
#ifndef DISTIR_LOWER_LOCAL_STATED_CUT_H_
#define DISTIR_LOWER_LOCAL_STATED_CUT_H_

#include <string>
#include <vector>

#include "rules/tir/kernel_rule.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

/*! \brief Number of parts of each dimension of a kernel's tensor parameters. */
using PartsOfDims = std::vector<std::vector<int64_t>>;

/*!
 * \brief The number of shards of each factor of the kernel's index maps; empty where the kernel
 * runs on any size of what is sharded, and so stays as it is.
 * \param what The kernel and its rule, for messages.
 * \throws ValueError naming the dimension, and the loop, that cannot be cut alike.
 */
std::vector<int64_t> CutByStatedRule(const std::string& what, const rules::KernelRule& kernel,
                                     const PartsOfDims& parts);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_LOCAL_STATED_CUT_H_
