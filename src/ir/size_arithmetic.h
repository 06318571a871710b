/*!
 * \file ir/size_arithmetic.h
 * \brief What padding asks of symbolic sizes: whether they divide, and what they are products of.
 */
#ifndef DISTIR_IR_SIZE_ARITHMETIC_H_
#define DISTIR_IR_SIZE_ARITHMETIC_H_

#include <vector>

#include "ir/node.h"

namespace distir {
namespace ir {

/*! \brief True if a dimension provably leaves no remainder, whatever its variables are. */
bool AlwaysDivides(const Expr& dim, int64_t divisor);
/*! \brief a + b. */
Expr Add(const Expr& a, int64_t b);
/*! \brief a - b. */
Expr Subtract(const Expr& a, const Expr& b);
/*!
 * \brief What a dimension is the product of: an integer, and what else is no product.
 *
 * n * 4 is 4 and [n], n * 4 + 8 is 4 and [n + 2].
 */
int64_t CollectFactors(const Expr& dim, std::vector<Expr>* others);

}  // namespace ir
}  // namespace distir
#endif  // DISTIR_IR_SIZE_ARITHMETIC_H_
