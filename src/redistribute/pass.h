/*!
 * \file redistribute/pass.h
 * \brief LegalizeRedistribute as a function, for passes that need its postcondition.
 */
#ifndef DISTIR_REDISTRIBUTE_PASS_H_
#define DISTIR_REDISTRIBUTE_PASS_H_

#include "ir/node.h"

namespace distir {
namespace redistribute {

/*!
 * \brief Replaces every redistribution by collectives and makes the reductions that factor rules
 * imply explicit. Pads first what does not divide.
 *
 * Precondition: arguments of every call lie on one device set (PropagateSharding sees to it).
 * Postcondition: no R.dist.redistribute between DTensors; functions are marked, so that a second
 * run changes nothing.
 */
ir::IRModule LegalizeRedistribution(const ir::IRModule& given);

}  // namespace redistribute
}  // namespace distir
#endif  // DISTIR_REDISTRIBUTE_PASS_H_
