/*!
 * \file target/products/dispatch.h
 * \brief Replaces contractions by calls of a library that computes them.
 */
#ifndef DISTIR_TARGET_PRODUCTS_DISPATCH_H_
#define DISTIR_TARGET_PRODUCTS_DISPATCH_H_

#include "ir/node.h"
#include "target/products/products.h"

namespace distir::target {

/*!
 * \brief Binds y = R.call_dps_packed(builtin, (a, b, subscripts)) for each contraction that the
 * library computes. With epilogues there follow a text that names what comes behind the product,
 * such as "bias add relu", and the terms of it in their order.
 */
ir::IRModule DispatchProducts(const ir::IRModule& mod, const ProductLibrary& library);

}  // namespace distir::target
#endif  // DISTIR_TARGET_PRODUCTS_DISPATCH_H_
