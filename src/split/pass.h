/*!
 * \file split/pass.h
 * \brief SplitFused: what other passes have fused or combined, and sharding needs apart.
 */
#ifndef DISTIR_SPLIT_PASS_H_
#define DISTIR_SPLIT_PASS_H_

#include "ir/node.h"

namespace distir {
namespace split {

constexpr const char* kPass = "SplitFused";

/*!
 * \brief Kernels that join or split become operators (split/kernel_pieces.h), products that were
 * combined become those that they were made of (split/combined_products.h), and kernels of a
 * reduction and an epilogue become two (split/kernel_parts.h). The same module where nothing states
 * a sharding, or nothing is fused.
 */
ir::IRModule SplitFused(const ir::IRModule& mod);

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_PASS_H_
