/*!
 * \file dialect/operators/collective_note.h
 * \brief Notes at calls of collectives, in which analysis writes what is known of each
 * (analysis/collective_calls.h). The passes from LowerCCL to TVM's memory plan keep them.
 */
#ifndef DISTIR_DIALECT_OPERATORS_COLLECTIVE_NOTE_H_
#define DISTIR_DIALECT_OPERATORS_COLLECTIVE_NOTE_H_

#include "ir/node.h"

namespace distir::dialect {

/*! \brief The attribute that has the note: of an operator on local tensors among its own, of a
 * builtin among those of the packed function. */
constexpr const char* kNoteAttr = "distir.note";

/*! \brief The note of a call of either kind; None if it has none. */
tvm::ffi::Any NoteOf(const ir::Call& call);
/*! \brief A packed function with a note; None: the function itself. */
ir::ExternFunc WithNote(const ir::ExternFunc& function, const tvm::ffi::Any& note);
/*! \brief A call of either kind with a note. */
ir::Call WithNote(const ir::Call& call, const tvm::ffi::Any& note);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_COLLECTIVE_NOTE_H_
