// Writes operators that fill the padding (tails) of tensors, and that change extents.
#include "padding/tail_writer.h"

#include "dialect/mesh_table.h"
#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "padding/extents.h"
#include "padding/scalar.h"
#include "support/dtypes.h"

namespace distir::padding {

namespace {

ir::Call Typed(const ffi::Any& call, const ir::Type& type) {
  auto untyped = call.cast<ir::Call>();
  return ir::MakeCall(type, untyped.op(), untyped.args(), untyped.attrs());
}

ir::DTensorType On(const ir::DTensorType& like, const ir::TensorType& tensor,
                   const std::vector<int>& placement) {
  return ir::MakeDTensorType(tensor, like.device_mesh(), ir::MakePlacement(placement));
}

DLDataType DTypeOf(const ir::DTensorType& type) { return type.tensor_ty().dtype(); }

ir::Expr Scalar(const ffi::Any& value, DLDataType dtype, const ir::DTensorType& like) {
  std::vector<int> replica(like.device_mesh().shape().size(), -1);
  return ir::MakeTensorConstant(value, On(like, ir::MakeTensorType({}, dtype), replica));
}

}  // namespace

void TailWriter::LeaveScope() {
  for (; mask_log_.size() > scopes_.back(); mask_log_.pop_back())
    masks_[mask_log_.back()].pop_back();
  scopes_.pop_back();
}

ir::Expr TailWriter::AsVar(const ir::Expr& value) {
  if (ir::Var::Is(value)) return value;
  auto item = ir::TupleGetItem::Cast(value);
  // Fields of fields are taken one by one, as in parsed programs.
  if (item.defined() && !ir::Var::Is(item.tuple()))
    return Emit("lv", ir::MakeTupleGetItem(AsVar(item.tuple()), item.index()));
  return Emit("lv", value);
}

ir::Expr TailWriter::MapTensors(
    const ir::Expr& value, const ir::Type& type,
    const std::function<ir::Expr(const ir::Expr&, const ir::DTensorType&)>& map) {
  auto tuple_ty = ir::TupleType::Cast(type);
  if (!tuple_ty.defined()) {
    bool is_tensor = ir::DTensorType::Is(type) || ir::TensorType::Is(type);
    return is_tensor ? map(value, ir::DTensorType::Cast(type)) : value;
  }
  auto literal = ir::Tuple::Cast(value);
  ffi::Array<ir::Expr> fields;
  bool changed = false;
  for (size_t i = 0; i < tuple_ty.fields().size(); ++i) {
    int index = static_cast<int>(i);
    ir::Expr field = literal.defined() ? literal.fields()[i] : ir::MakeTupleGetItem(value, index);
    fields.push_back(MapTensors(field, tuple_ty.fields()[i], map));
    changed = changed || !fields.back().same_as(field);
  }
  if (!changed) return value;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (ir::TupleGetItem::Is(fields[i])) fields.Set(i, AsVar(fields[i]));
  }
  return ir::MakeTuple(fields);
}

ir::Expr TailWriter::Mask(const ir::DTensorType& padded, int dim, const ir::Expr& extent) {
  std::vector<int> placement = dialect::PlacementDims(padded.placement());
  int rank = padded.tensor_ty().ndim();
  const ir::Expr size = ir::ShapeOf(padded.tensor_ty())[dim];
  MaskKey key{reinterpret_cast<int64_t>(padded.device_mesh().get()), ir::StaticDim(size),
              ir::StaticDim(extent), rank - dim};
  for (int& axis : placement) {
    axis = axis == dim ? 0 : -1;
    key.push_back(axis);
  }
  for (const KnownMask& known : masks_[key]) {
    if (ir::SameDim(known.size, size) && ir::SameDim(known.extent, extent)) return known.mask;
  }

  // A symbolic extent cannot stand in a constant: positions then begin that far below 0.
  const bool is_static = ir::StaticDim(extent) >= 0;
  const ir::Expr begin = is_static ? ir::MakeInt(0) : ir::Subtract(ir::MakeInt(0), extent);
  const ir::Expr last = is_static ? size : ir::Subtract(size, extent);
  ir::TensorType positions_ty = ir::MakeTensorType({size}, kInt64);
  ir::Expr mask = Emit("positions",
                       Typed(ir::make::kArange(begin, last, ir::MakeInt(1), kInt64), positions_ty));
  mask = Emit("positions", dialect::MakeRedistribute(mask, On(padded, positions_ty, placement)));
  ir::Expr end = Scalar(ScalarOf(kInt64, is_static ? ir::StaticDim(extent) : 0), kInt64, padded);
  ffi::Array<ir::Expr> shape{size};
  mask = Emit("inside", Typed(ir::make::kLess(mask, end),
                              On(padded, ir::MakeTensorType(shape, kBool), placement)));
  if (dim + 1 < rank) {
    ffi::Array<int64_t> axes;
    for (int d = dim + 1; d < rank; ++d) {
      axes.push_back(d - dim);
      shape.push_back(ir::MakeInt(1));
    }
    mask = Emit("inside", Typed(ir::make::kExpandDims(mask, axes),
                                On(padded, ir::MakeTensorType(shape, kBool), placement)));
  }
  masks_[key].push_back({size, extent, mask});
  mask_log_.push_back(key);
  return mask;
}

ir::Expr TailWriter::Filled(const ir::Expr& value, const ir::DTensorType& type,
                            const std::vector<int>& dims, rules::Tail tail) {
  ir::Expr filled = AsVar(value);
  ffi::String name = ir::Var::Cast(filled).name();
  auto padded = ir::DTensorType::Cast(filled.ty());
  DLDataType dtype = DTypeOf(padded);
  for (int dim : dims) {
    ir::Expr mask = Mask(padded, dim, ir::ShapeOf(type.tensor_ty())[dim]);
    ir::Expr fill = Converted(FillOf(dtype, tail), padded);
    filled = Emit(name, Typed(ir::make::kWhere(mask, filled, fill), padded));
  }
  return filled;
}

ir::Expr TailWriter::Resized(const ir::Expr& value, const Extents& before, const Extents& extents) {
  ir::Expr resized = AsVar(value);
  ffi::String name = ir::Var::Cast(resized).name();
  auto type = ir::DTensorType::Cast(resized.ty());
  const Extents have = ExtentsOf(type.tensor_ty());
  if (!Differ(have, extents)) return resized;
  Extents cut = have;
  ffi::Array<ir::Expr> axes, begin, end;
  bool is_symbolic = false;
  for (size_t d = 0; d < have.size(); ++d) {
    if (ir::SameDim(extents[d], have[d])) continue;
    const int64_t from = ir::StaticDim(have[d]), to = ir::StaticDim(extents[d]);
    if (from >= 0 && from < to) continue;
    // Of symbolic extents it is not known which is larger: what is padded is cut off in any case.
    is_symbolic = is_symbolic || to < 0;
    cut[d] = to < 0 ? before[d] : extents[d];
    if (ir::SameDim(cut[d], have[d])) continue;
    axes.push_back(ir::MakeInt(static_cast<int64_t>(d)));
    begin.push_back(ir::MakeInt(0));
    end.push_back(cut[d]);
  }
  if (!axes.empty()) {
    resized =
        Emit(name, Typed(ir::make::kStridedSlice(resized, ir::MakeTuple(axes), ir::MakeTuple(begin),
                                                 ir::MakeTuple(end), nullptr, is_symbolic),
                         WithExtents(type, cut)));
  }
  ffi::Array<int64_t> widths;
  bool is_padded = false;
  Extents padded = cut;
  for (size_t d = 0; d < have.size(); ++d) {
    const int64_t from = ir::StaticDim(cut[d]), to = ir::StaticDim(extents[d]);
    const bool grows = from >= 0 && to > from;
    if (grows) padded[d] = extents[d];
    widths.push_back(0);
    widths.push_back(grows ? to - from : 0);
    is_padded = is_padded || grows;
  }
  if (is_padded) {
    resized = Emit(name, Typed(ir::make::kNnPad(resized, widths, ffi::String("constant"), 0.0),
                               WithExtents(type, padded)));
  }
  for (size_t d = 0; d < have.size(); ++d) {
    if (ir::SameDim(padded[d], extents[d])) continue;
    Extents tail = padded;
    tail[d] = ir::Subtract(extents[d], padded[d]);
    padded[d] = extents[d];
    const ir::Expr zeros = Zeros(WithExtents(type, tail));
    resized = Emit(
        name, Typed(ir::make::kConcat(ir::MakeTuple({resized, zeros}), static_cast<int64_t>(d)),
                    WithExtents(type, padded)));
  }
  return resized;
}

ir::Expr TailWriter::Zeros(const ir::DTensorType& type) {
  const ir::TensorType& tensor = type.tensor_ty();
  const ir::Expr zero = Converted(FillOf(tensor.dtype(), rules::Tail::kZero), type);
  std::vector<int> replica(type.device_mesh().shape().size(), -1);
  const ir::DTensorType whole = On(type, tensor, replica);
  const ir::Expr zeros = Emit("zeros", Typed(ir::make::kBroadcastTo(zero, tensor.shape()), whole));
  if (ir::StructurallyEqual(whole, type)) return zeros;
  return Emit("zeros", dialect::MakeRedistribute(zeros, type));
}

ir::Expr TailWriter::Number(const ir::Expr& number, const ir::DTensorType& like) {
  const int64_t value = ir::StaticDim(number);
  if (value < 0) return SymbolicNumber(number, like);
  return Converted(ScalarOf(WrittenAs(DTypeOf(like)), value), like);
}

ir::Expr TailWriter::SymbolicNumber(const ir::Expr& number, const ir::DTensorType& like) {
  std::vector<int> replica(like.device_mesh().shape().size(), -1);
  const ir::TensorType one = ir::MakeTensorType({ir::MakeInt(1)}, kInt64);
  ir::Expr value = Emit(
      "number", Typed(ir::make::kArange(number, ir::Add(number, 1), ir::MakeInt(1), kInt64), one));
  value = Emit("number", dialect::MakeRedistribute(value, On(like, one, replica)));
  value = Emit("number", Typed(ir::make::kReshape(value, ir::MakeShape({})),
                               On(like, ir::MakeTensorType({}, kInt64), replica)));
  return Emit("number", Typed(ir::make::kAstype(value, DTypeOf(like)),
                              On(like, ir::MakeTensorType({}, DTypeOf(like)), replica)));
}

ir::Expr TailWriter::Converted(const ffi::Any& written, const ir::DTensorType& like) {
  DLDataType dtype = DTypeOf(like), written_as = WrittenAs(dtype);
  ir::Expr scalar = Scalar(written, written_as, like);
  if (dtype == written_as) return scalar;
  std::vector<int> replica(like.device_mesh().shape().size(), -1);
  return Emit("fill", Typed(ir::make::kAstype(scalar, dtype),
                            On(like, ir::MakeTensorType({}, dtype), replica)));
}

}  // namespace distir::padding
