/*!
 * \file split/combined_products.h
 * \brief Separates products that were combined into one and are split behind it.
 *
 *     w = R.concat((wq, wk), axis=1)
 *     y = R.matmul(x, w)                          q = R.matmul(x, wq)
 *     s = R.split(y, [64], axis=1)          ->    k = R.matmul(x, wk)
 *     q = s[0]; k = s[1]
 *
 * With the columns of wq and wk sharded, w would have to be exchanged, since its shards lie on
 * other devices than theirs. A bias that is joined alike, and elementwise operators, may stand
 * between the product and the split. All of these may be kernels: of a kernel for all columns one
 * for fewer is made.
 */
#ifndef DISTIR_SPLIT_COMBINED_PRODUCTS_H_
#define DISTIR_SPLIT_COMBINED_PRODUCTS_H_

#include "ir/node.h"

namespace distir {
namespace split {

ir::IRModule SeparateProducts(const ir::IRModule& mod);

}  // namespace split
}  // namespace distir
#endif  // DISTIR_SPLIT_COMBINED_PRODUCTS_H_
