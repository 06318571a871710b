/*!
 * \file lower/numbered_entries.h
 * \brief Lists of named things, of which those of layers are stated once.
 */
#ifndef DISTIR_LOWER_NUMBERED_ENTRIES_H_
#define DISTIR_LOWER_NUMBERED_ENTRIES_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>

#include <string>
#include <vector>

namespace distir {
namespace lower {

/*!
 * \brief Entries "name: text", in order, with runs of groups folded that differ by a number only.
 *
 * The number is the first one in a name. Example:
 * "x: A", "l.0.up: B", "l.0.down: C", "l.1.up: B", "l.1.down: C" gives
 * "x: A", ["0..1", "l.{}.up: B", "l.{}.down: C"].
 * Entries with braces stay as they are.
 */
tvm::ffi::Array<tvm::ffi::Any> FoldNumbered(const std::vector<std::string>& entries);

}  // namespace lower
}  // namespace distir
#endif  // DISTIR_LOWER_NUMBERED_ENTRIES_H_
