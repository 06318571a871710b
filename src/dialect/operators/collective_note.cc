// Notes at calls of collectives, before and after LowerCCL.
#include "dialect/operators/collective_note.h"

#include "dialect/operators/collective_record.h"
#include "ir/build.h"
#include "ir/packed_function.h"

namespace distir::dialect {

tvm::ffi::Any NoteOf(const ir::Call& call) {
  if (RecordOnTensors(call.op()) != nullptr) return ir::GetAttr(call.attrs(), kNoteAttr);
  const ir::ExternFunc function = ir::PackedFunctionOf(call);
  return function.defined() ? ir::GetAttr(function, kNoteAttr) : tvm::ffi::Any();
}

ir::ExternFunc WithNote(const ir::ExternFunc& function, const tvm::ffi::Any& note) {
  return note == nullptr ? function : ir::WithAttr(function, kNoteAttr, note);
}

ir::Call WithNote(const ir::Call& call, const tvm::ffi::Any& note) {
  ir::Expr op = call.op();
  ir::Node attrs = call.attrs();
  tvm::ffi::Array<ir::Expr> args = call.args();
  if (RecordOnTensors(op) != nullptr) {
    attrs = ir::WithAttr(attrs, kNoteAttr, note);
  } else if (ir::ExternFunc::Is(op)) {
    op = WithNote(ir::ExternFunc::Cast(op), note);
  } else {
    args.Set(0, WithNote(ir::ExternFunc::Cast(args[0]), note));
  }
  return ir::MakeCall(call.ty(), op, args, attrs, call.ty_args(), call.span());
}

}  // namespace distir::dialect
