/*!
 * \file redistribute/pass.h
 * \brief LegalizeRedistribute: redistributions become collectives on DTensors.
 */
#ifndef DISTIR_REDISTRIBUTE_PASS_H_
#define DISTIR_REDISTRIBUTE_PASS_H_

#include "ir/node.h"

namespace distir::redistribute {

/*!
 * \brief Replaces every redistribution by collectives and makes the reductions that factor rules
 * imply explicit.
 *
 * Precondition: arguments of every call lie on one device set (PropagateSharding sees to it), every
 * static dimension divides (PadShards), and no call has a decomposed factor that is sharded
 * (DecomposeSharded).
 * Postcondition: no R.dist.redistribute between DTensors; functions are marked, so that a second
 * run changes nothing.
 */
ir::IRModule LegalizeRedistribute(const ir::IRModule& mod);

}  // namespace distir::redistribute
#endif  // DISTIR_REDISTRIBUTE_PASS_H_
