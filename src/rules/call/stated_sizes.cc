// Changes sizes that arguments and attributes of a call state.
#include "rules/call/stated_sizes.h"

#include "ir/build.h"
#include "rules/call/infer_type.h"
#include "rules/operator.h"

namespace distir::rules {

ir::Call WithStatedSizes(const ir::Call& call, const ir::Call& whole) {
  const Operator* record = FindOperator(whole.op());
  if (record == nullptr || (record->local_attrs == nullptr && record->local_args == nullptr))
    return call;
  const OpView of_whole = ViewCall(whole, StripDistribution(whole.ty()));
  const OpView part = ViewCall(call, StripDistribution(call.ty()));
  ffi::Array<ir::Expr> args = call.args();
  if (record->local_args != nullptr) args = record->local_args(of_whole, part);
  const ir::Node attrs =
      record->local_attrs != nullptr ? record->local_attrs(of_whole, part) : call.attrs();
  return ir::MakeCall(call.ty(), call.op(), args, attrs, call.ty_args(), call.span());
}

ir::Call ResizedCall(const ir::Call& whole, const ir::Type& type, ffi::Array<ir::Expr> args) {
  const Operator* record = FindOperator(whole.op());
  if (record != nullptr && record->shape_argument >= 0)
    args.Set(record->shape_argument, ir::TensorType::Cast(StripDistribution(type)).shape());
  // A call that states the type of its result states the new one.
  const ffi::Array<ir::Type> stated =
      whole.ty_args().empty() ? ffi::Array<ir::Type>() : ffi::Array<ir::Type>{type};
  return WithStatedSizes(ir::MakeCall(type, whole.op(), args, whole.attrs(), stated, whole.span()),
                         whole);
}

}  // namespace distir::rules
