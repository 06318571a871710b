/*!
 * \file split/pass.h
 * \brief SplitFused: what other passes have fused or combined, and sharding needs apart; what is
 * sorted, and sharding needs in its own order.
 */
#ifndef DISTIR_SPLIT_PASS_H_
#define DISTIR_SPLIT_PASS_H_

#include "ir/node.h"

namespace distir {
namespace split {

/*!
 * \brief Kernels of a reduction and an epilogue become two (split/kernel_parts.h), and products
 * that were combined become those that they were made of (split/combined_products.h). Rows that are
 * sorted and put back keep their order (split/sorted_rows.h). The same module where nothing states
 * a sharding, or there is nothing of these.
 */
ir::IRModule SplitFused(const ir::IRModule& mod);

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_PASS_H_
