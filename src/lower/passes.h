/*!
 * \file lower/passes.h
 * \brief Passes that lower DTensors to the programs of workers.
 */
#ifndef DISTIR_LOWER_PASSES_H_
#define DISTIR_LOWER_PASSES_H_

#include "ir/node.h"

namespace distir::lower {

/*!
 * \brief Kernels on DTensors become kernels on the shards of each device
 * (dialect/operators/local_view.h), in programs that stay DTensor-typed.
 *
 * Precondition: LegalizeRedistribute has been run, so that what kernels leave to be reduced is
 * reduced behind them.
 * \throws ValueError naming a kernel that cannot run on the shards that its call states, or a local
 * view whose kernel takes other shapes.
 */
ir::IRModule LowerGlobalViewToLocalView(const ir::IRModule& mod);
/*!
 * \brief Lowers DTensors to per-worker programs on local tensors, with collectives over groups of
 * devices.
 *
 * Precondition: LegalizeRedistribute and LowerGlobalViewToLocalView have been run.
 * \throws ValueError where a dimension does not divide into its shards; names function and tensor.
 */
ir::IRModule LowerDistIR(const ir::IRModule& mod);
/*! \brief Local collectives become destination-passing calls of the runtime. */
ir::IRModule LowerCCL(const ir::IRModule& mod);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_PASSES_H_
