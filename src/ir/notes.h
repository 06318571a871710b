/*!
 * \file ir/notes.h
 * \brief Notes of passes for `explain`: function attributes that nothing else depends on.
 *
 * Notes are printed and parsed with a function, and passes of TVM keep them, but they take no part
 * in structural comparison: a program is equal to the same program without notes, and has the same
 * hash. The result that a pass promises does not depend on what it notes.
 *
 * Bindings that a pass made in computing a variable are noted, too (kMadeAttr, ir/rewriter.h).
 *
 * Worked example: `foo` with attributes {"global_symbol": "foo", "distir.stated": ["x"]} is equal
 * to `foo` with {"global_symbol": "foo"}.
 */
#ifndef DISTIR_IR_NOTES_H_
#define DISTIR_IR_NOTES_H_

namespace distir::ir {

/*!
 * \brief Names the variables whose shardings were stated, by an annotation or a type: ["x", "up"].
 * Other shardings follow from these, which `explain` finds out when it is asked.
 */
constexpr const char* kStatedAttr = "distir.stated";

/*!
 * \brief Says of stated variables with open dimensions how many shards were stated of each
 * dimension, which come before those that propagation has added: ["x: 2 1"].
 */
constexpr const char* kOpenAttr = "distir.open";

/*!
 * \brief Names dimensions of parameters of which an annotation is taken back, since their heads are
 * copied, and how many shards it stated: ["wk: 1 4"].
 */
constexpr const char* kTakenBackAttr = "distir.taken_back";

/*! \brief Says how the variables of a worker's program are placed (lower/local/local_shardings.h).
 */
constexpr const char* kShardingsAttr = "distir.shardings";

}  // namespace distir::ir
#endif  // DISTIR_IR_NOTES_H_
