/*!
 * \file unfuse/combined_products.h
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
#ifndef DISTIR_UNFUSE_COMBINED_PRODUCTS_H_
#define DISTIR_UNFUSE_COMBINED_PRODUCTS_H_

#include "ir/node.h"

namespace distir::unfuse {

ir::IRModule SeparateProducts(const ir::IRModule& mod);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_COMBINED_PRODUCTS_H_
