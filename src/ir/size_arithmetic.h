/*!
 * \file ir/size_arithmetic.h
 * \brief Arithmetic on symbolic sizes for padding: divisibility, and factors of products.
 */
#ifndef DISTIR_IR_SIZE_ARITHMETIC_H_
#define DISTIR_IR_SIZE_ARITHMETIC_H_

#include <vector>

#include "ir/node.h"

namespace distir::ir {

/*! \brief True if a dimension provably leaves no remainder, whatever its variables are. */
bool AlwaysDivides(const Expr& dim, int64_t divisor);
/*! \brief a + b. */
Expr Add(const Expr& a, int64_t b);
/*! \brief a - b. */
Expr Subtract(const Expr& a, const Expr& b);
/*!
 * \brief Factors of a dimension: an integer, and the terms that are no products.
 *
 * n * 4 is 4 and [n], n * 4 + 8 is 4 and [n + 2].
 */
int64_t CollectFactors(const Expr& dim, std::vector<Expr>* others);

}  // namespace distir::ir
#endif  // DISTIR_IR_SIZE_ARITHMETIC_H_
