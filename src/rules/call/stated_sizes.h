/*!
 * \file rules/call/stated_sizes.h
 * \brief Changes sizes that an operator's arguments and attributes state.
 *
 * Worked example: R.nn.conv2d with groups=8, the channels sharded in 4. A worker has a quarter of
 * the channels, so its call states groups=2; the record of the operator says how (local_attrs).
 */
#ifndef DISTIR_RULES_CALL_STATED_SIZES_H_
#define DISTIR_RULES_CALL_STATED_SIZES_H_

#include "ir/node.h"

namespace distir::rules {

namespace ffi = tvm::ffi;

/*!
 * \brief A call with the sizes that it states written for the types that it has.
 * \param call Made from `whole` for tensors of other sizes; arguments and type are in place.
 * \param whole The call that its arguments and attributes were written for.
 */
ir::Call WithStatedSizes(const ir::Call& call, const ir::Call& whole);

/*!
 * \brief An operator's call on tensors of other sizes. R.reshape of x (10, 6) to (10, 2, 3), x
 * being padded to (12, 6), states (12, 2, 3).
 * \param whole The call as it is.
 * \param type Of the result, with its other sizes.
 * \param args In place of the arguments of `whole`: tensors of other sizes.
 */
ir::Call ResizedCall(const ir::Call& whole, const ir::Type& type, ffi::Array<ir::Expr> args);

}  // namespace distir::rules
#endif  // DISTIR_RULES_CALL_STATED_SIZES_H_
