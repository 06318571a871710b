/*!
 * \file ir/module/renew.h
 * \brief Copies a function so that the copy can stand beside it in a module.
 */
#ifndef DISTIR_IR_MODULE_RENEW_H_
#define DISTIR_IR_MODULE_RENEW_H_

#include "ir/node.h"

namespace distir::ir {

/*!
 * \brief The function with parameters and symbolic variables of its own, under the same names: TVM
 * lets no two functions of a module share them.
 *
 *     f(x: Tensor((n, 8)), s: Shape([n]))  ->  f(x': Tensor((n', 8)), s': Shape([n']))
 */
Function RenewVars(const Function& function);

}  // namespace distir::ir
#endif  // DISTIR_IR_MODULE_RENEW_H_
