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
 */
ir::IRModule DispatchCublasLt(const ir::IRModule& mod);

}  // namespace distir::target
#endif  // DISTIR_TARGET_GPU_DISPATCH_MATMUL_H_
