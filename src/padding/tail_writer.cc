#include "padding/tail_writer.h"

#include "dialect/mesh_table.h"
#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/symbolic.h"
#include "padding/extents.h"
#include "padding/scalar.h"

namespace distir {
namespace padding {

namespace {

constexpr DLDataType kBool{kDLBool, 8, 1};
constexpr DLDataType kInt64{kDLInt, 64, 1};

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
  for (; mask_log_.size() > scopes_.back(); mask_log_.pop_back()) masks_.erase(mask_log_.back());
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

ir::Expr TailWriter::Mask(const ir::DTensorType& padded, int dim, int64_t extent) {
  std::vector<int> placement = dialect::PlacementDims(padded.placement());
  int rank = padded.tensor_ty().ndim();
  int64_t size = ir::StaticDim(ir::ShapeOf(padded.tensor_ty())[dim]);
  MaskKey key{reinterpret_cast<int64_t>(padded.device_mesh().get()), size, extent, rank - dim};
  for (int& axis : placement) {
    axis = axis == dim ? 0 : -1;
    key.push_back(axis);
  }
  auto known = masks_.find(key);
  if (known != masks_.end()) return known->second;

  ir::TensorType positions_ty = ir::MakeTensorType({ir::MakeInt(size)}, kInt64);
  ir::Expr mask =
      Emit("positions",
           Typed(ir::make::kArange(ir::MakeInt(0), ir::MakeInt(size), ir::MakeInt(1), kInt64),
                 positions_ty));
  mask = Emit("positions", dialect::MakeRedistribute(mask, On(padded, positions_ty, placement)));
  ir::Expr end = Scalar(ScalarOf(kInt64, extent), kInt64, padded);
  ffi::Array<ir::Expr> shape{ir::MakeInt(size)};
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
  masks_.emplace(key, mask);
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
    ir::Expr mask = Mask(padded, dim, ir::StaticDim(ir::ShapeOf(type.tensor_ty())[dim]));
    ir::Expr fill = Converted(FillOf(dtype, tail), padded);
    filled = Emit(name, Typed(ir::make::kWhere(mask, filled, fill), padded));
  }
  return filled;
}

ir::Expr TailWriter::Resized(const ir::Expr& value, const rules::Sizes& extents) {
  ir::Expr resized = AsVar(value);
  ffi::String name = ir::Var::Cast(resized).name();
  auto type = ir::DTensorType::Cast(resized.ty());
  rules::Sizes have = rules::StaticSizes(type.tensor_ty());
  rules::Sizes cut = have;
  ffi::Array<ir::Expr> axes, begin, end;
  ffi::Array<int64_t> widths;
  bool is_padded = false;
  for (size_t d = 0; d < have.size(); ++d) {
    const bool is_known = have[d] >= 0 && extents[d] >= 0;
    if (is_known && extents[d] < have[d]) {
      cut[d] = extents[d];
      axes.push_back(ir::MakeInt(static_cast<int64_t>(d)));
      begin.push_back(ir::MakeInt(0));
      end.push_back(ir::MakeInt(extents[d]));
    }
    widths.push_back(0);
    widths.push_back(is_known ? extents[d] - cut[d] : 0);
    is_padded = is_padded || widths.back() > 0;
  }
  if (!axes.empty()) {
    resized =
        Emit(name, Typed(ir::make::kStridedSlice(resized, ir::MakeTuple(axes), ir::MakeTuple(begin),
                                                 ir::MakeTuple(end), nullptr, false),
                         WithExtents(type, cut)));
  }
  if (is_padded) {
    resized = Emit(name, Typed(ir::make::kNnPad(resized, widths, ffi::String("constant"), 0.0),
                               WithExtents(type, extents)));
  }
  return resized;
}

ir::Expr TailWriter::Number(int64_t number, const ir::DTensorType& like) {
  return Converted(ScalarOf(WrittenAs(DTypeOf(like)), number), like);
}

ir::Expr TailWriter::Converted(const ffi::Any& written, const ir::DTensorType& like) {
  DLDataType dtype = DTypeOf(like), written_as = WrittenAs(dtype);
  ir::Expr scalar = Scalar(written, written_as, like);
  if (dtype == written_as) return scalar;
  std::vector<int> replica(like.device_mesh().shape().size(), -1);
  return Emit("fill", Typed(ir::make::kAstype(scalar, dtype),
                            On(like, ir::MakeTensorType({}, dtype), replica)));
}

}  // namespace padding
}  // namespace distir
