// Lowers a collective of several tensors: concatenate, communicate, split.
#include "lower/spmd/combined_collective.h"

#include <string>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/symbolic.h"
#include "mesh/collective_record.h"

namespace distir::lower {

namespace {

using mesh::CollectiveKind;

using Sizes = std::vector<int64_t>;

Sizes SizesOf(const ir::TensorType& type) {
  Sizes sizes;
  for (const ir::Expr& dim : ir::ShapeOf(type)) sizes.push_back(ir::StaticDim(dim));
  return sizes;
}

int64_t Product(const Sizes& sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) product *= size;
  return product;
}

/*! \brief Emits calls on tensors of one element type. */
class Emitter {
 public:
  Emitter(const ir::TensorType& like, const std::function<ir::Expr(const ir::Expr&)>& emit)
      : like_(like), emit_(emit) {}

  ir::TensorType Type(const Sizes& sizes) const {
    ffi::Array<ir::Expr> dims;
    for (int64_t size : sizes) dims.push_back(ir::MakeInt(size));
    return ir::MakeTensorType(dims, like_);
  }
  ir::Expr Bind(const ffi::Any& value, const ir::Type& type) const {
    ir::Expr call = value.cast<ir::Expr>();
    ir::SetType(call, type);
    return emit_(call);
  }
  ir::Expr Reshape(const ir::Expr& value, const Sizes& sizes) const {
    ir::TensorType type = Type(sizes);
    if (SizesOf(ir::TensorType::Cast(value.ty())) == sizes) return value;
    return Bind(ir::make::kReshape(value, type.shape()), type);
  }
  /*! \brief Moves a dimension; `sizes` are those of the value. */
  ir::Expr Move(const ir::Expr& value, Sizes sizes, int from, int to) const {
    if (from == to) return value;
    std::vector<int64_t> order;
    for (size_t d = 0; d < sizes.size(); ++d) order.push_back(static_cast<int64_t>(d));
    order.erase(order.begin() + from);
    order.insert(order.begin() + to, from);
    Sizes moved;
    for (int64_t d : order) moved.push_back(sizes[d]);
    return Bind(ir::make::kPermuteDims(value, ffi::Array<int64_t>(order.begin(), order.end())),
                Type(moved));
  }
  ir::Expr Concat(const ir::NodeArray<ir::Expr>& values, int axis, const Sizes& sizes) const {
    return Bind(ir::make::kConcat(ir::MakeTuple(values), ffi::Optional<int64_t>(axis)),
                Type(sizes));
  }
  /*! \brief Cuts a value along an axis into parts of these widths. */
  ffi::Array<ir::Expr> Split(const ir::Expr& value, Sizes sizes, int axis,
                             const std::vector<int64_t>& widths) const {
    if (widths.size() == 1) return {value};
    ffi::Array<int64_t> cuts;
    ffi::Array<ir::Type> types;
    int64_t position = 0;
    for (int64_t width : widths) {
      if (position > 0) cuts.push_back(position);
      position += width;
      sizes[axis] = width;
      types.push_back(Type(sizes));
    }
    ir::Expr tuple =
        Bind(ir::make::kSplit(value, cuts, static_cast<int64_t>(axis)), ir::MakeTupleType(types));
    ffi::Array<ir::Expr> parts;
    for (size_t i = 0; i < widths.size(); ++i)
      parts.push_back(emit_(ir::MakeTupleGetItem(tuple, static_cast<int>(i))));
    return parts;
  }

 private:
  const ir::TensorType& like_;
  const std::function<ir::Expr(const ir::Expr&)>& emit_;
};

bool IsEmpty(const CombinedPart& part) {
  return Product(SizesOf(ir::TensorType::Cast(part.value.ty()))) == 0;
}

/*! \brief (.., n * l, ..) as (n, .., l, ..): the shard of each device in front. */
ir::Expr ShardsInFront(const Emitter& emitter, const ir::Expr& value, int dim, int64_t n) {
  Sizes sizes = SizesOf(ir::TensorType::Cast(value.ty()));
  sizes[dim] /= n;
  sizes.insert(sizes.begin() + dim, n);
  return emitter.Move(emitter.Reshape(value, sizes), sizes, dim, 0);
}

}  // namespace

ffi::Array<ir::Expr> EmitCombined(CollectiveKind kind, const std::vector<CombinedPart>& parts,
                                  int64_t group_size,
                                  std::vector<std::pair<const char*, ffi::Any>> attrs,
                                  const std::function<ir::Expr(const ir::Expr&)>& emit) {
  const bool gathers = kind == CollectiveKind::kAllGather;
  const bool scatters = kind == CollectiveKind::kReduceScatter;
  const std::string op_name = abi::OnTensors(mesh::RecordedAs(kind));
  // Tensors without elements stay alone: R.reshape reads a size of 0 as that of its operand.
  std::vector<CombinedPart> full;
  for (const CombinedPart& part : parts) {
    if (!IsEmpty(part)) full.push_back(part);
  }
  if (full.size() < parts.size()) {
    ffi::Array<ir::Expr> combined;
    if (!full.empty()) combined = EmitCombined(kind, full, group_size, attrs, emit);
    ffi::Array<ir::Expr> results;
    size_t next = 0;
    for (const CombinedPart& part : parts) {
      if (!IsEmpty(part)) {
        results.push_back(combined[next++]);
        continue;
      }
      auto of_one = attrs;
      if (gathers || scatters) of_one.emplace_back("dim", part.dim);
      results.push_back(emit(ir::MakeOpCall(part.target, op_name.c_str(), {part.value}, of_one)));
    }
    return results;
  }
  Emitter emitter(parts[0].target, emit);
  // Rows of the matrices before and after: one per device where shards lie beside each other.
  int64_t rows_before = scatters ? group_size : 1;
  int64_t rows_after = gathers ? group_size : 1;
  ffi::Array<ir::Expr> flat;
  std::vector<int64_t> widths;
  int64_t total = 0;
  for (const CombinedPart& part : parts) {
    int64_t width = Product(SizesOf(ir::TensorType::Cast(part.value.ty()))) / rows_before;
    ir::Expr value =
        scatters ? ShardsInFront(emitter, part.value, part.dim, group_size) : part.value;
    flat.push_back(emitter.Reshape(value, {rows_before, width}));
    widths.push_back(width);
    total += width;
  }
  ir::Expr together = emitter.Concat(flat, 1, {rows_before, total});
  if (gathers || scatters) attrs.emplace_back("dim", 0);
  ir::Expr sent =
      emit(ir::MakeOpCall(emitter.Type({rows_after, total}), op_name.c_str(), {together}, attrs));
  ffi::Array<ir::Expr> apart = emitter.Split(sent, {rows_after, total}, 1, widths);
  ffi::Array<ir::Expr> results;
  for (size_t i = 0; i < parts.size(); ++i) {
    ir::Expr value = apart[i];
    if (gathers) {
      Sizes sizes = SizesOf(ir::TensorType::Cast(parts[i].value.ty()));
      sizes.insert(sizes.begin(), group_size);
      value = emitter.Move(emitter.Reshape(value, sizes), sizes, 0, parts[i].dim);
    }
    results.push_back(emitter.Reshape(value, SizesOf(parts[i].target)));
  }
  return results;
}

}  // namespace distir::lower
