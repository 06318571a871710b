/*!
 * \file phases/needed_split.h
 * \brief Runs SplitFused within other passes, and splits only the kernels that shardings need
 * split.
 *
 *     lv1 = R.call_tir(split1, (lv0,), ..)      # halves of the rows
 *
 * becomes R.split if the rows of lv0 are sharded. If its columns are, the kernel does as well, and
 * stays: PropagateSharding then returns the kernels that it was given, as upstream's pass does.
 */
#ifndef DISTIR_PHASES_NEEDED_SPLIT_H_
#define DISTIR_PHASES_NEEDED_SPLIT_H_

#include "ir/node.h"

namespace distir::phases {

/*!
 * \brief The module after SplitFused, or the same module where this makes no difference: both are
 * sharded alike, without redistributions, and what became an operator comes before all reductions,
 * so that none moves over it.
 */
ir::IRModule SplitWhereNeeded(const ir::IRModule& mod);

}  // namespace distir::phases
#endif  // DISTIR_PHASES_NEEDED_SPLIT_H_
