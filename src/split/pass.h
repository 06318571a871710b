/*!
 * \file split/pass.h
 * \brief SplitFused: what other passes have fused or combined, and sharding needs apart.
 */
#ifndef DISTIR_SPLIT_PASS_H_
#define DISTIR_SPLIT_PASS_H_

#include "ir/node.h"

namespace distir {
namespace split {

/*!
 * \brief Kernels of a reduction and an epilogue become two (split/kernel_parts.h), and products
 * that were combined become those that they were made of (split/combined_products.h). The same
 * module where nothing states a sharding, or nothing is fused.
 */
ir::IRModule SplitFused(const ir::IRModule& mod);

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_PASS_H_
