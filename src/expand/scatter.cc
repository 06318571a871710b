// Writes at positions, along sharded dimensions. Every device writes what lies in its own block; of
// all else it adds 0 or multiplies by 1, or writes it to a place behind the block, which is then
// cut off. Shards of what is accumulated are written apart, the first onto the data, and reduced.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "expand/algorithm.h"
#include "expand/blocks.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/axes.h"
#include "rules/scatter_fields.h"

namespace distir {
namespace expand {

namespace {

const ir::GlobalFunction kAdd("relax.op.add");
const ir::GlobalFunction kClip("relax.op.clip");
const ir::GlobalFunction kConcat("relax.op.concat");
const ir::GlobalFunction kEqual("relax.op.equal");
const ir::GlobalFunction kFloorDivide("relax.op.floor_divide");
const ir::GlobalFunction kFloorMod("relax.op.floor_mod");
const ir::GlobalFunction kGreaterEqual("relax.op.greater_equal");
const ir::GlobalFunction kLess("relax.op.less");
const ir::GlobalFunction kLogicalAnd("relax.op.logical_and");
const ir::GlobalFunction kMax("relax.op.max");
const ir::GlobalFunction kMin("relax.op.min");
const ir::GlobalFunction kProd("relax.op.prod");
const ir::GlobalFunction kScatterElements("relax.op.scatter_elements");
const ir::GlobalFunction kSubtract("relax.op.subtract");
const ir::GlobalFunction kSum("relax.op.sum");
const ir::GlobalFunction kTake("relax.op.take");
const ir::GlobalFunction kWhere("relax.op.where");
const ir::GlobalFunction kZerosLike("relax.op.zeros_like");

constexpr DLDataType kInt64{kDLInt, 64, 1};

/*! \brief What is written where. Before and behind the written dimensions, and the dimensions of
 * updates that stand for them, data, updates and positions have the same ones. */
struct Writes {
  ir::Expr data;
  int begin;                        // of the written dimensions
  std::vector<ir::Expr> positions;  // per written dimension; broadcast to the updates
  ir::Expr updates;
  int num_update_dims;
  std::string mode;  // of R.scatter_elements
};

/*! \brief Whether a device has the first of the shards along all of `axes`, which are dimensions
 * `dim`, `dim` + 1, .. of `rank`. */
ir::Expr IsFirst(const std::vector<mesh::AxisList>& axes, int dim, int rank, Writer* w) {
  ir::Expr is_first;
  for (const mesh::AxisList& each : axes) {
    ir::Expr is = w->Write(kEqual, w->ShardIndex(each, dim++, rank), w->Scalar(0, kInt64));
    is_first = is_first.defined() ? w->Write(kLogicalAnd, is_first, is) : is;
  }
  return is_first;
}

/*! \brief How shards of what is accumulated are combined. */
struct Combination {
  const ir::GlobalFunction& reduce;
  std::optional<double> neutral;  // what changes nothing; without it the data itself does not
};

/*! \brief Null for modes in which the order counts. */
const Combination* CombinationOf(const std::string& mode) {
  static const std::map<std::string, Combination> combinations = {{"add", {kSum, 0}},
                                                                  {"max", {kMax, std::nullopt}},
                                                                  {"min", {kMin, std::nullopt}},
                                                                  {"mul", {kProd, 1}}};
  auto found = combinations.find(mode);
  return found == combinations.end() ? nullptr : &found->second;
}

bool HaveSameShape(const ir::Expr& a, const ir::Expr& b) {
  const ffi::Array<ir::Expr>&left = ir::ShapeOf(TensorTypeOf(a)),
        &right = ir::ShapeOf(TensorTypeOf(b));
  for (size_t d = 0; d < left.size(); ++d) {
    if (!ir::SameDim(left[d], right[d])) return false;
  }
  return true;
}

/*! \brief Dimensions `begin` to `begin + num` as one. */
ir::Expr Flatten(const ir::Expr& x, int begin, int num, Writer* w) {
  if (num == 1) return x;
  const ffi::Array<ir::Expr>& shape = ir::ShapeOf(TensorTypeOf(x));
  std::vector<ir::Expr> flat(shape.begin() + begin, shape.begin() + begin + num);
  ffi::Array<ir::Expr> merged(shape.begin(), shape.begin() + begin);
  merged.push_back(flat.empty() ? ir::MakeInt(1) : ir::Product(flat));
  for (size_t d = begin + num; d < shape.size(); ++d) merged.push_back(shape[d]);
  return w->Reshape(x, merged);
}

/*! \brief The shards of what is written: dimensions of their own, before those that they are of. */
class UpdateShards {
 public:
  UpdateShards(const Writes& writes, Writer* w) : begin_(writes.begin) {
    const mesh::Sharding sharding = w->ShardingOf(writes.updates);
    for (int d = begin_; d < begin_ + writes.num_update_dims; ++d) {
      const mesh::AxisList& along = sharding.dims[d];
      counts_.push_back(along.empty() ? 0 : mesh::NumShards(along));
      if (!along.empty()) axes_.push_back(along);
    }
  }

  /*! \brief The axes of each dimension of shards. */
  const std::vector<mesh::AxisList>& axes() const { return axes_; }

  /*! \brief Updates, or positions that broadcast to them, with these dimensions. */
  ir::Expr Split(const ir::Expr& x, Writer* w) const {
    if (axes_.empty()) return x;
    std::vector<int64_t> counts = counts_;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[begin_ + i]) == 1)
        counts[i] = std::min<int64_t>(counts[i], 1);
    }
    return ShardsFirst(x, begin_, counts, w);
  }

 private:
  int begin_;
  std::vector<int64_t> counts_;  // per dimension of updates; 0 where it is not sharded
  std::vector<mesh::AxisList> axes_;
};

// Dimensions: before.., shards of the data.., shards of the updates.., places, behind..
ir::Expr Scatter(const Writes& writes, Writer* w) {
  const int begin = writes.begin;
  const UpdateShards shards(writes, w);
  const std::vector<mesh::AxisList>& axes = shards.axes();
  std::vector<ir::Expr> positions;
  for (const ir::Expr& each : writes.positions) positions.push_back(shards.Split(each, w));
  ir::Expr updates = shards.Split(writes.updates, w);

  const Blocks blocks(writes.data, begin, static_cast<int>(positions.size()), w);
  auto [is_own, place] = blocks.Find(positions, w);
  ir::Expr data = blocks.Split(writes.data, w);
  const int of_updates = begin + blocks.num_sharded();
  const int axis = of_updates + static_cast<int>(axes.size());
  std::vector<int> new_dims;
  for (int d = of_updates; d < axis; ++d) new_dims.push_back(d);
  data = w->ExpandDims(data, new_dims);
  const Combination* combination = CombinationOf(writes.mode);
  std::optional<double> neutral;
  if (combination != nullptr) neutral = combination->neutral;
  const bool writes_behind = is_own.defined() && !neutral;
  if (writes_behind)
    data = w->Write(kConcat, ir::MakeTuple({data, Cut(data, axis, 0, 1, w)}), int64_t(axis));
  if (is_own.defined()) {
    std::vector<int> of_shards;
    for (int d = begin; d < of_updates; ++d) of_shards.push_back(d);
    updates = w->Write(kWhere, is_own, w->ExpandDims(updates, of_shards),
                       w->Scalar(neutral.value_or(0), DtypeOf(updates)));
    const double other = writes_behind ? static_cast<double>(blocks.places()) : 0;
    place = w->Write(kWhere, is_own, place, w->Scalar(other, DtypeOf(place)));
  }
  if (!HaveSameShape(place, updates))
    place = w->Write(kAdd, place, w->Write(kZerosLike, updates, DtypeOf(place)));
  if (!axes.empty()) {
    ir::Expr others = neutral ? w->Scalar(*neutral, DtypeOf(data)) : data;
    data = w->Write(kWhere, IsFirst(axes, of_updates, RankOf(data), w), data, others);
  }
  ir::Expr written = w->Write(
      kScatterElements, data, Flatten(place, axis, writes.num_update_dims, w),
      Flatten(updates, axis, writes.num_update_dims, w), int64_t(axis), ffi::String(writes.mode));
  if (writes_behind) written = Cut(written, axis, 0, blocks.places(), w);
  if (!axes.empty())
    written = w->Reduce(combination->reduce, written, new_dims, /*keepdims=*/false);
  return blocks.Join(written, w);
}

/*! \brief Positions of which negative ones count from the end. */
ir::Expr FromBegin(const ir::Expr& positions, const ir::Expr& data, int dim, Writer* w) {
  const int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(data))[dim]);
  const DLDataType dtype = DtypeOf(positions);
  ir::Expr is_negative = w->Write(kLess, positions, w->Scalar(0, dtype));
  ir::Expr shifted = w->Write(kAdd, positions, w->Scalar(static_cast<double>(size), dtype));
  return w->Write(kWhere, is_negative, shifted, positions);
}

/*! \brief New dimensions of size 1 before and behind all others. */
ir::Expr Between(const ir::Expr& x, int before, int behind, Writer* w) {
  std::vector<int> ones;
  for (int d = 0; d < before; ++d) ones.push_back(d);
  for (int d = 0; d < behind; ++d) ones.push_back(before + RankOf(x) + d);
  return w->ExpandDims(x, ones);
}

ir::Expr ScatterElements(const SpecialCall& call, Writer* w) {
  ir::Expr data = call.arg(0);
  int axis = rules::NormalizeAxis(rules::kScatterElementsAxis.Int(call.attrs(), 0), RankOf(data));
  return Scatter({data,
                  axis,
                  {FromBegin(call.arg(1), data, axis, w)},
                  call.arg(2),
                  1,
                  rules::kScatterElementsMode.Text(call.attrs())},
                 w);
}

// indices [i.. m], updates [i.. t..], data [m dimensions.. t..]
ir::Expr ScatterNd(const SpecialCall& call, Writer* w) {
  ir::Expr data = call.arg(0), indices = call.arg(1);
  std::vector<ir::Expr> positions = Columns(indices, w);
  const int behind = RankOf(data) - static_cast<int>(positions.size());
  for (ir::Expr& each : positions) each = Between(each, 0, behind, w);
  const int last = RankOf(indices) - 1;
  return Scatter({data, 0, positions, call.arg(2), last, rules::kScatterNdMode.Text(call.attrs())},
                 w);
}

ir::Expr IndexPut(const SpecialCall& call, Writer* w) {
  ir::Expr data = call.arg(0), values = call.arg(2);
  auto tuple = ir::Tuple::Cast(call.arg(1));
  ffi::Array<ir::Expr> indices =
      tuple.defined() ? tuple.fields() : ffi::Array<ir::Expr>{call.arg(1)};
  int rank = 0;
  for (const ir::Expr& each : indices) rank = std::max(rank, RankOf(each));
  std::vector<ir::Expr> positions;
  ffi::Array<ir::Expr> shape(rank, ir::MakeInt(1));  // of all positions broadcast
  for (size_t i = 0; i < indices.size(); ++i) {
    ir::Expr all = Between(indices[i], rank - RankOf(indices[i]), 0, w);
    for (int d = 0; d < rank; ++d) {
      const ir::Expr& size = ir::ShapeOf(TensorTypeOf(all))[d];
      if (ir::StaticDim(size) != 1) shape.Set(d, size);
    }
    positions.push_back(FromBegin(all, data, static_cast<int>(i), w));
  }
  if (RankOf(values) != rank) values = w->Reshape(values, shape);
  const bool accumulates = rules::kIndexPutAccumulate.Bool(call.attrs());
  return Scatter({data, 0, positions, values, rank, accumulates ? "add" : "update"}, w);
}

// The sum of the gradients of all results that a row was looked up for.
ir::Expr TakeBackward(const SpecialCall& call, Writer* w) {
  ir::Expr table = call.arg(1);
  const DLDataType dtype = DtypeOf(table);
  int rank = RankOf(table);
  int axis = (*rules::ReadAxes(rules::kTakeAxis(call.attrs()), rank))[0];
  return Scatter({w->Write(kZerosLike, table, dtype),
                  axis,
                  {Between(call.arg(2), axis, rank - axis - 1, w)},
                  w->Cast(call.arg(0), dtype),
                  1,
                  "add"},
                 w);
}

// Every place of a shard takes the row of the source that is written there, if one is.
ir::Expr SliceScatter(const SpecialCall& call, Writer* w) {
  ir::Expr data = call.arg(0), source = call.arg(1);
  const int rank = RankOf(data);
  const int axis = rules::NormalizeAxis(rules::kSliceScatterAxis.Int(call.attrs(), 0), rank);
  auto number = [&call](int arg) { return ir::IntImm::Cast(call.arg(arg)).value(); };
  auto scalar = [w](int64_t value) { return w->Scalar(static_cast<double>(value), kInt64); };
  const ffi::Array<ir::Expr>& shape = ir::ShapeOf(TensorTypeOf(data));
  ir::Expr places = w->Positions(call.SpecialAxes(), shape[axis]);
  ir::Expr from_start = w->Write(kSubtract, places, scalar(number(2)));
  ir::Expr step = scalar(number(4)), zero = w->Scalar(0, kInt64);
  const int64_t size = ir::StaticDim(shape[axis]);
  const ir::Expr conditions[] = {w->Write(kGreaterEqual, from_start, zero),
                                 w->Write(kLess, places, scalar(std::min(number(3), size))),
                                 w->Write(kEqual, w->Write(kFloorMod, from_start, step), zero)};
  ir::Expr is_written = w->Write(kLogicalAnd, conditions[0], conditions[1]);
  is_written = w->Write(kLogicalAnd, is_written, conditions[2]);
  const int64_t rows = ir::StaticDim(ir::ShapeOf(TensorTypeOf(source))[axis]);
  ir::Expr row = w->Write(kClip, w->Write(kFloorDivide, from_start, step), ir::MakeInt(0),
                          ir::MakeInt(rows - 1));
  ir::Expr taken = w->Write(kTake, source, row, int64_t(axis), ffi::String("clip"));
  return w->Write(kWhere, Between(is_written, 0, rank - axis - 1, w), taken, data);
}

const AlgorithmTable kScatters({{"relax.grad.take_backward", TakeBackward},
                                {"relax.index_put", IndexPut},
                                {"relax.scatter_elements", ScatterElements},
                                {"relax.scatter_nd", ScatterNd},
                                {"relax.slice_scatter", SliceScatter}});

}  // namespace

}  // namespace expand
}  // namespace distir
