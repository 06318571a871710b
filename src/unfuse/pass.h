/*!
 * \file unfuse/pass.h
 * \brief SplitFused: undoes rewrites of other passes and frontends that prevent sharding.
 *
 * What TVM's passes have fused or combined is taken apart. Rows that were sorted stay in their own
 * order, and the terms of a sum that were written one by one are computed together.
 */
#ifndef DISTIR_UNFUSE_PASS_H_
#define DISTIR_UNFUSE_PASS_H_

#include "ir/node.h"

namespace distir::unfuse {

constexpr const char* kPass = "SplitFused";

/*!
 * \brief Buffers that kernels allocate become those of their blocks (unfuse/hoisted_buffers.h),
 * kernels that join, split or normalise become operators (unfuse/kernel_pieces.h), products
 * that were combined become those that they were made of (unfuse/combined_products.h), rows that
 * are sorted and put back keep their order (unfuse/sorted_rows.h), terms of a sum that were written
 * one by one are computed together (unfuse/unrolled_sums.h), extents that depend on data are left
 * open (unfuse/data_extents.h), and kernels of a reduction and an epilogue become two
 * (unfuse/kernel_parts.h). The same module where nothing states a sharding, or where none of these
 * is found.
 */
ir::IRModule SplitFused(const ir::IRModule& mod);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_PASS_H_
