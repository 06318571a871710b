/*!
 * \file ir/module/numbered.h
 * \brief Folds lists and sets of names that differ by a number, since notes of passes are printed
 * with the module.
 *
 * Worked example: "x: A", "l.0.up: B", "l.0.down: C", "l.1.up: B", "l.1.down: C" is
 * "x: A", ["0..1", "l.{}.up: B", "l.{}.down: C"].
 */
#ifndef DISTIR_IR_MODULE_NUMBERED_H_
#define DISTIR_IR_MODULE_NUMBERED_H_

#include <string>
#include <vector>

#include "ir/node.h"

namespace distir::ir {

/*! \brief Folds entries, names or "name: text", in order: runs of neighbours, or of groups of them,
 * that differ by the first number of their names. Entries with braces stay as they are. */
ffi::Array<ffi::Any> FoldNumbered(const std::vector<std::string>& entries);

/*! \brief Names whose order says nothing, folded as support/name_set.h says. */
ffi::Array<ffi::Any> FoldNames(const std::vector<std::string>& names);

/*! \brief The inverse, in another order; what is malformed is left out. */
std::vector<std::string> UnfoldNames(const ffi::Any& folded);

}  // namespace distir::ir
#endif  // DISTIR_IR_MODULE_NUMBERED_H_
