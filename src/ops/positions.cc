// Positions that count from the end, or lie outside of a dimension, as operators.
#include "ops/positions.h"

#include <algorithm>
#include <limits>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/symbolic.h"
#include "support/dtypes.h"

namespace distir::ops {

using decompose::DtypeOf;
using decompose::Writer;

ir::Expr NumberOf(const ir::Expr& size, DLDataType dtype, Writer* w) {
  const int64_t known = ir::StaticDim(size);
  if (known >= 0) return w->Scalar(static_cast<double>(known), dtype);
  return w->Cast(w->Reshape(w->Number(size), {}), dtype);
}

ir::Expr FromBegin(const ir::Expr& positions, const ir::Expr& size, Writer* w) {
  DLDataType dtype = DtypeOf(positions);
  if (dtype.code == kDLUInt) return w->Cast(positions, kInt64);
  if (dtype.bits < 32) dtype = kInt64;
  ir::Expr wide = w->Cast(positions, dtype);
  ir::Expr is_negative = w->Write(ir::make::kLess, wide, w->Scalar(0, dtype));
  ir::Expr shifted = w->Write(ir::make::kAdd, wide, NumberOf(size, dtype, w));
  return w->Write(ir::make::kWhere, is_negative, shifted, wide);
}

ir::Expr AreWithin(const ir::Expr& positions, const ir::Expr& size, Writer* w) {
  const DLDataType dtype = DtypeOf(positions);
  return w->Write(ir::make::kLogicalAnd,
                  w->Write(ir::make::kGreaterEqual, positions, w->Scalar(0, dtype)),
                  w->Write(ir::make::kLess, positions, NumberOf(size, dtype, w)));
}

ir::Expr Nearest(const ir::Expr& positions, const ir::Expr& size, Writer* w) {
  const int64_t known = ir::StaticDim(size);
  const int64_t most =
      known >= 0 ? std::max<int64_t>(known - 1, 0) : std::numeric_limits<int32_t>::max();
  ir::Expr nearest = w->Write(ir::make::kClip, positions, ir::MakeInt(0), ir::MakeInt(most));
  if (known >= 0) return nearest;
  const DLDataType dtype = DtypeOf(positions);
  ir::Expr number = NumberOf(size, dtype, w);
  return w->Write(ir::make::kWhere, w->Write(ir::make::kLess, nearest, number), nearest,
                  w->Write(ir::make::kSubtract, number, w->Scalar(1, dtype)));
}

}  // namespace distir::ops
