/*!
 * \file target/gpu/dispatch_matmul.h
 * \brief Leaves the matrix products of a worker's program for GPUs to cuBLASLt.
 */
#ifndef DISTIR_TARGET_GPU_DISPATCH_MATMUL_H_
#define DISTIR_TARGET_GPU_DISPATCH_MATMUL_H_

#include "ir/node.h"

namespace distir::target {

/*!
 * \brief Contractions that cuBLASLt computes become calls of the runtime; the pass's report has the
 *        others, by reason.
 * \param fewest_rows Products of fewer rows, or columns, stay; symbolic sizes count as enough.
 */
ir::IRModule DispatchCublasLt(const ir::IRModule& mod, int64_t fewest_rows);

}  // namespace distir::target
#endif  // DISTIR_TARGET_GPU_DISPATCH_MATMUL_H_
