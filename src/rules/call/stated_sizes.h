/*!
 * \file rules/call/stated_sizes.h
 * \brief Sizes that an operator's arguments and attributes state.
 *
 * Worked example: R.nn.conv2d with groups=8, the channels sharded in 4. A worker has a quarter of
 * the channels, so its call states groups=2; the record of the operator says how (local_attrs).
 */
#ifndef DISTIR_RULES_CALL_STATED_SIZES_H_
#define DISTIR_RULES_CALL_STATED_SIZES_H_

#include "ir/node.h"

namespace distir {
namespace rules {

/*!
 * \brief A call with the sizes that it states written for the types that it has.
 * \param call Made from `whole` for tensors of other sizes; arguments and type are in place.
 * \param whole The call that its arguments and attributes were written for.
 */
ir::Call WithStatedSizes(const ir::Call& call, const ir::Call& whole);

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_CALL_STATED_SIZES_H_
