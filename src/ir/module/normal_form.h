/*!
 * \file ir/module/normal_form.h
 * \brief Normal form of functions that passes assume, stricter than TVM's own.
 *
 * - A match_cast checks a variable, not a call.
 * - A dataflow block has no call of a packed function that may have effects. Such a call stands
 *   between two dataflow blocks, in its place in the program.
 * - Symbolic sizes have names that are different from each other and stay when the function is
 *   printed and parsed.
 *
 *     x: Tensor((, 6))                                    x: Tensor((x_dim0, 6))
 *     with R.dataflow():
 *         y = R.exp(x)                                    with R.dataflow():
 *         s = vm.builtin.tensor_to_shape(n)           ->      y = R.exp(x)
 *         t = R.match_cast(R.unique(y), Tensor((m,)))     s = vm.builtin.tensor_to_shape(n)
 *                                                         with R.dataflow():
 *                                                             t_1 = R.unique(y)
 *                                                             t = R.match_cast(t_1, Tensor((m,)))
 */
#ifndef DISTIR_IR_MODULE_NORMAL_FORM_H_
#define DISTIR_IR_MODULE_NORMAL_FORM_H_

#include "ir/node.h"

namespace distir::ir {

/*! \brief The module with its Relax functions in this form; the same module where they are in it.
 * \param mod A module that is well formed (ir/module/well_formed.h). */
IRModule NormalForm(const IRModule& mod);

/*! \brief True if a call may have effects that its type does not say: one of a packed function that
 * gives no tensor. */
bool MayHaveEffects(const Call& call);

}  // namespace distir::ir
#endif  // DISTIR_IR_MODULE_NORMAL_FORM_H_
