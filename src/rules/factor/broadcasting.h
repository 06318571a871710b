/*!
 * \file rules/factor/broadcasting.h
 * \brief The rule of NumPy's broadcasting: result dimension d takes its factor from every operand
 * whose dimension, aligned from the right, has the same size; a dimension of size 1 that is
 * stretched has no factor. If there are several results (dropout and its mask) they have one
 * shape.
 *
 * Worked example: (8, 1) and (16,) give (8, 16), [i][] and [j] give [i][j].
 */
#ifndef DISTIR_RULES_FACTOR_BROADCASTING_H_
#define DISTIR_RULES_FACTOR_BROADCASTING_H_

#include "rules/factor/factor_rule.h"

namespace distir::rules {

FactorRule Broadcasting(const OpView& view);

}  // namespace distir::rules
#endif  // DISTIR_RULES_FACTOR_BROADCASTING_H_
