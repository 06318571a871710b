// Reads the buffer that an allocation statement of a kernel defines.
#include "ir/allocation.h"

namespace distir::ir {

namespace {

using Annotations = ffi::Map<ffi::String, ffi::Any>;

const Kind kAllocBuffer("tirx.AllocBuffer");
const Field<Var> kBuffer("tirx.AllocBuffer", "buffer");
const AttrField kAnnotations("tirx.AllocBuffer", "annotations");

}  // namespace

Var AllocatedBuffer(const Stmt& stmt) {
  if (!kAllocBuffer.Matches(stmt.get())) return Var();
  const auto annotations = kAnnotations(stmt).as<Annotations>();
  return annotations && !annotations->empty() ? Var() : kBuffer(stmt);
}

}  // namespace distir::ir
