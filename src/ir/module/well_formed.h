/*!
 * \file ir/module/well_formed.h
 * \brief Preconditions of every pass on the Relax functions of a module.
 *
 * Users run passes of TVM and of their own between ours. Some leave broken functions: those of TVM
 * 0.27 that rewrite expressions make a new variable for every one of a DTensor type, and not all of
 * them replace its uses. Such a module would end in a crash or in wrong numbers much later.
 *
 *     with R.dataflow():
 *         y: R.DTensor(...) = R.exp(x)
 *         z: R.DTensor(...) = R.add(y_old, y_old)  # `z` in `main` uses `y`, which is not defined
 *
 * Time is linear in the module.
 */
#ifndef DISTIR_IR_MODULE_WELL_FORMED_H_
#define DISTIR_IR_MODULE_WELL_FORMED_H_

#include <string>

#include "ir/node.h"

namespace distir::ir {

/*!
 * \brief Checks the Relax functions of a module:
 * - a variable is bound once, and used only where it is visible; symbolic sizes are left out;
 * - parameters, bound variables and calls have types;
 * - with DTensors, functions are in A-normal form: an argument is no call;
 * - a function that is called is in the module, and is given as many arguments as it has
 *   parameters;
 * - a dataflow block calls no kernel and no impure function of the module;
 * - tuples have no more than a million values (CheckTuples);
 * - nothing ends the life of a value (relax.transform.KillAfterLastUse), since passes add uses.
 *
 * \param pass The pass that is about to run, for the message.
 * \throws ValueError at the first violation, in order of the functions' names; names function and
 * variable.
 */
void CheckWellFormed(const IRModule& mod, const std::string& pass);

/*!
 * \brief Checks that the tuples of a function can be taken apart: a tuple of twice the same tuple,
 * and so on, doubles their number at every level.
 * \throws ValueError naming a variable of more than a million values.
 */
void CheckTuples(const GlobalVar& gv, const Function& function);

}  // namespace distir::ir
#endif  // DISTIR_IR_MODULE_WELL_FORMED_H_
