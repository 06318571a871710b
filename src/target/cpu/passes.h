/*!
 * \file target/cpu/passes.h
 * \brief Passes on a worker's program for CPUs. Each is one file.
 *
 * Each function returns the module itself where it has nothing to do.
 */
#ifndef DISTIR_TARGET_CPU_PASSES_H_
#define DISTIR_TARGET_CPU_PASSES_H_

#include "ir/node.h"

namespace distir::target {

/*! \brief Contractions of two tensors become calls of the runtime's einsum. */
ir::IRModule DispatchMatmul(const ir::IRModule& mod);
/*! \brief Convolutions become calls of the runtime. */
ir::IRModule DispatchConvolution(const ir::IRModule& mod);
/*! \brief Parameters that are returned with more behind them become calls of the runtime, which
 * appends in place. */
ir::IRModule AppendInPlace(const ir::IRModule& mod);
/*! \brief Results of collectives that are only read become tensors that threads may share. */
ir::IRModule ShareResults(const ir::IRModule& mod);
/*! \brief Operands of large collectives are made where other processes of the host see them. */
ir::IRModule ShareOperands(const ir::IRModule& mod);
/*! \brief Elementwise kernels write to operands that are not read any more, results to donated
 * parameters. */
ir::IRModule WriteInPlace(const ir::IRModule& mod);

}  // namespace distir::target
#endif  // DISTIR_TARGET_CPU_PASSES_H_
