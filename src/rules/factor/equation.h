/*!
 * \file rules/factor/equation.h
 * \brief Reads the subscripts of an einsum: one label per dimension.
 *
 * Example: "...ij,jk" of ranks 3 and 2 has the operands [257, i, j] and [j, k] and the result
 * [257, i, k].
 */
#ifndef DISTIR_RULES_FACTOR_EQUATION_H_
#define DISTIR_RULES_FACTOR_EQUATION_H_

#include <vector>

#include "ir/node.h"

namespace distir::rules {

using Labels = std::vector<int>;

struct Equation {
  /*! \brief Letters, and for an ellipsis 256 plus the dimension counted from the right. */
  std::vector<Labels> operands;
  Labels result;
};

/*! \brief The equation of a R.einsum; what does not fit the ranks has other numbers of labels. */
Equation ReadEquation(const ir::Call& call, const std::vector<int>& ranks, int result_rank);

}  // namespace distir::rules
#endif  // DISTIR_RULES_FACTOR_EQUATION_H_
