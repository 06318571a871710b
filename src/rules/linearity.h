/*!
 * \file rules/linearity.h
 * \brief Operators that commute with the reduction of a partial operand.
 *
 * A partial value x stands for reduce(x_i) over the x_i of the devices. An operator f commutes with
 * the reduction in some of its operands if f(reduce(x_i), y) = reduce(f(x_i, y)), where y is not
 * partial: then the reduction can come behind it. Worked examples: add commutes with a sum if both
 * operands are partial (a replicated one would be added once per device), and with a maximum if
 * exactly one of them is. Multiplication commutes with a sum in one operand. An operator that only
 * moves elements commutes with everything.
 *
 * Equality is that of real numbers: floating-point sums are added in another order.
 */
#ifndef DISTIR_RULES_LINEARITY_H_
#define DISTIR_RULES_LINEARITY_H_

#include <vector>

#include "ir/node.h"
#include "mesh/sharding.h"

namespace distir::rules {

/*!
 * \brief True if a call commutes with `reduction` in the operands marked in `partial`.
 * \param partial One mark per tensor operand, tuples flattened; at least one is set.
 */
bool CommutesWith(const ir::Call& call, const std::vector<bool>& partial,
                  mesh::Reduction reduction);

/*! \brief True if the table has the operator at all. */
bool MayCommute(const ir::Expr& op);

}  // namespace distir::rules
#endif  // DISTIR_RULES_LINEARITY_H_
