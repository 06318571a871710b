/*!
 * \file optimize/program/chain.h
 * \brief Replaces chains of collectives by the planner's sequence from first to last value.
 */
#ifndef DISTIR_OPTIMIZE_PROGRAM_CHAIN_H_
#define DISTIR_OPTIMIZE_PROGRAM_CHAIN_H_

#include "optimize/optimization.h"

namespace distir::optimize {

enum class Chains {
  kMoving,    // without reductions
  kReducing,  // with at least one
};

/*!
 * \brief Replans the collective of a binding together with collectives before it, where that sends
 * less. A collective before it counts as saved only if nothing else uses its value.
 * \return True if the binding was changed.
 */
bool FoldChain(EditableFunction* editable, EditableBinding* binding, Chains which,
               Program* program);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PROGRAM_CHAIN_H_
