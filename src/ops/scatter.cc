// Operators that write at positions that another tensor states. The written tensor may be sharded:
// each shard skips positions in other shards. The written values may be sharded, too, if their
// order does not matter and reducing the data sends less than gathering the values.
// Writes at positions, along sharded dimensions. Every device writes what lies in its own block; of
// all else it adds 0 or multiplies by 1, or writes it to a place behind the block, which is then
// cut off. Shards of what is accumulated are written apart, the first onto the data, and reduced.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "decompose/blocks.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ops/family.h"
#include "ops/positions.h"
#include "rules/call/projection.h"
#include "support/dtypes.h"

namespace distir::ops {

namespace {

using decompose::Blocks;
using decompose::Columns;
using decompose::Cut;

// ---- factor rules

bool AreKnown(const Sizes& sizes, int begin, int num) {
  for (int d = begin; d < begin + num; ++d) {
    if (sizes[d] <= 0) return false;
  }
  return true;
}

/*! \brief Gives dimensions that are written to by position a factor each. */
void AddWritten(const OpView& view, int begin, int num, RuleBuilder* builder) {
  Sizes sizes = StaticSizes(view.results[0]);
  if (!AreKnown(sizes, begin, num)) return;
  for (int d = begin; d < begin + num; ++d) {
    int factor = builder->Decomposed(sizes[d]);
    builder->Operand(0, d, factor);
    builder->Result(0, d, factor);
  }
}

/*! \brief True if shards of the updates may be written apart and reduced: an all-reduce of the data
 * sends it twice. */
bool MayReduce(const OpView& view, const std::string& mode) {
  if (mode != "add" && mode != "mul" && mode != "min" && mode != "max") return false;
  const ir::TensorType &data = view.operands[0], &updates = view.operands.back();
  if (!data.has_dtype() || data.dtype().code == kDLBool) return false;
  const Sizes written = StaticSizes(data), read = StaticSizes(updates);
  return AreKnown(written, 0, static_cast<int>(written.size())) &&
         AreKnown(read, 0, static_cast<int>(read.size())) &&
         2 * NumElements(written) <= NumElements(read);
}

FactorRule ScatterElements(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]), updates = StaticSizes(view.operands[2]);
  int rank = static_cast<int>(sizes.size());
  int axis = NormalizeAxis(ir::attrs::kScatterElementsAxis.Int(view.call.attrs(), 0), rank);
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == axis) {
      AddWritten(view, axis, 1, &builder);
      if (!MayReduce(view, ir::attrs::kScatterElementsReduction.Text(view.call.attrs()))) continue;
      int places = builder.Decomposed(updates[d]);
      builder.Operand(1, d, places);
      builder.Operand(2, d, places);
      continue;
    }
    // Shorter indices are aligned with the data's beginning, so that shards would not match.
    if (!SameSize(view.operands[0], d, view.operands[1], d) ||
        !SameSize(view.operands[0], d, view.operands[2], d))
      continue;
    int factor = builder.Parallel(sizes[d]);
    for (size_t i = 0; i < 3; ++i) builder.Operand(i, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

// result = data, then result[indices[i.., :].., t..] = updates[i.., t..]
FactorRule ScatterNd(const OpView& view) {
  Sizes indices = StaticSizes(view.operands[1]);
  if (indices.empty() || indices.back() < 0) return ReplicateAll(view);
  int num = static_cast<int>(indices.back());
  Sizes data = StaticSizes(view.operands[0]);
  int update_dim = static_cast<int>(indices.size()) - 1;
  RuleBuilder builder(view);
  AddWritten(view, 0, num, &builder);
  if (MayReduce(view, ir::attrs::kScatterNDReduction.Text(view.call.attrs()))) {
    for (int d = 0; d < update_dim; ++d) {
      int places = builder.Decomposed(indices[d]);
      builder.Operand(1, d, places);
      builder.Operand(2, d, places);
    }
  }
  for (int d = num; d < static_cast<int>(data.size()); ++d) {
    int factor = builder.Parallel(data[d]);
    builder.Operand(0, d, factor);
    builder.Operand(2, update_dim++, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

// result = data, then result[index[i..]..] = values[i..], the indices broadcast among each other;
// one for each dimension of the data.
FactorRule IndexPut(const OpView& view) {
  const int num = static_cast<int>(view.operands.size()) - 2;
  const size_t values = view.operands.size() - 1;
  if (ShardableRank(view.operands[0]) != num) return ReplicateAll(view);
  int rank = 0;
  for (int i = 1; i <= num; ++i) {
    for (int64_t size : StaticSizes(view.operands[i])) {
      if (size < 0) return ReplicateAll(view);
    }
    rank = std::max(rank, ShardableRank(view.operands[i]));
  }
  Sizes places(rank, 1);  // of all indices broadcast
  for (int i = 1; i <= num; ++i) {
    Sizes sizes = StaticSizes(view.operands[i]);
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] != 1) places[rank - sizes.size() + d] = sizes[d];
    }
  }
  const Sizes stated = StaticSizes(view.operands[values]);
  if (NumElements(stated) != NumElements(places)) return ReplicateAll(view);
  RuleBuilder builder(view);
  AddWritten(view, 0, num, &builder);
  const char* mode = ir::attrs::kIndexPutAccumulate.Bool(view.call.attrs()) ? "add" : "update";
  if (static_cast<int>(stated.size()) != rank || !MayReduce(view, mode)) return builder.Finish();
  for (int d = 0; d < rank; ++d) {
    int factor = builder.Decomposed(places[d]);
    builder.Operand(values, d, factor);
    for (int i = 1; i <= num; ++i) {
      int dim = d - (rank - ShardableRank(view.operands[i]));
      if (dim >= 0 && StaticSizes(view.operands[i])[dim] == places[d])
        builder.Operand(i, dim, factor);
    }
  }
  return builder.Finish();
}

// Operands: data, then what is written to a slice of it, which is needed whole along the slice.
FactorRule SliceScatter(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  int axis = NormalizeAxis(ir::attrs::kSliceScatterAxis.Int(view.call.attrs(), 0), rank);
  const ir::NodeArray<ir::Expr>& args = view.call.args();  // data, source, start, end, step
  bool is_known = std::all_of(args.begin() + 2, args.end(), ir::IntImm::Is) &&
                  ir::IntImm::Cast(args[4]).value() > 0 && StaticSizes(view.operands[1])[axis] > 0;
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == axis) {
      if (is_known) AddWritten(view, axis, 1, &builder);
      continue;
    }
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

// The gradient of a lookup adds up what was looked up at each position: shards of the indices give
// parts of that sum. Operands: gradient of the result, table, indices.
FactorRule TakeBackward(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[1]);
  int rank = static_cast<int>(sizes.size());
  auto axes = ReadAxes(ir::attrs::kTakeAxis(view.call.attrs()), rank);
  if (!axes || ShardableRank(view.operands[2]) != 1) return ReplicateAll(view);
  int axis = (*axes)[0];
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == axis) {
      int indices = builder.Reduce(StaticSizes(view.operands[2])[0], mesh::Reduction::kSum);
      builder.Operand(0, d, indices);
      builder.Operand(2, 0, indices);
      if (sizes[d] <= 0) continue;
      int rows = builder.Decomposed(sizes[d]);
      builder.Operand(1, d, rows);
      builder.Result(0, d, rows);
      continue;
    }
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

// ---- decompositions

/*! \brief Writes of a scatter. Before and behind the written dimensions, and the dimensions of
 * updates that stand for them, data, updates and positions have the same ones. */
struct Writes {
  ir::Expr data;
  int begin;                        // of the written dimensions
  std::vector<ir::Expr> positions;  // per written dimension; broadcast to the updates
  ir::Expr updates;
  int num_update_dims;
  std::string mode;  // of R.scatter_elements
};

/*! \brief True if a device has the first of the shards along all of `axes`, which are dimensions
 * `dim`, `dim` + 1, .. of `rank`. */
ir::Expr IsFirst(const std::vector<mesh::AxisList>& axes, int dim, int rank, Writer* w) {
  ir::Expr is_first;
  for (const mesh::AxisList& each : axes) {
    ir::Expr is =
        w->Write(ir::make::kEqual, w->ShardIndex(each, dim++, rank), w->Scalar(0, kInt64));
    is_first = is_first.defined() ? w->Write(ir::make::kLogicalAnd, is_first, is) : is;
  }
  return is_first;
}

/*! \brief Combination of shards of what is accumulated. */
struct Combination {
  const ir::GlobalFunction& reduce;
  std::optional<double> neutral;  // what changes nothing; without it the data itself does not
};

/*! \brief Null for modes in which the order counts. */
const Combination* CombinationOf(const std::string& mode) {
  static const std::map<std::string, Combination> combinations = {
      {"add", {ir::make::kSum, 0}},
      {"max", {ir::make::kMax, std::nullopt}},
      {"min", {ir::make::kMin, std::nullopt}},
      {"mul", {ir::make::kProd, 1}}};
  auto found = combinations.find(mode);
  return found == combinations.end() ? nullptr : &found->second;
}

bool HaveSameShape(const ir::Expr& a, const ir::Expr& b) {
  const ir::NodeArray<ir::Expr>&left = ir::ShapeOf(TensorTypeOf(a)),
        &right = ir::ShapeOf(TensorTypeOf(b));
  for (size_t d = 0; d < left.size(); ++d) {
    if (!ir::SameDim(left[d], right[d])) return false;
  }
  return true;
}

/*! \brief Dimensions `begin` to `begin + num` as one. */
ir::Expr Flatten(const ir::Expr& x, int begin, int num, Writer* w) {
  if (num == 1) return x;
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(TensorTypeOf(x));
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

/*! \brief New dimensions of size 1 before and behind all others. */
ir::Expr Between(const ir::Expr& x, int before, int behind, Writer* w) {
  std::vector<int> ones;
  for (int d = 0; d < before; ++d) ones.push_back(d);
  for (int d = 0; d < behind; ++d) ones.push_back(before + RankOf(x) + d);
  return w->ExpandDims(x, ones);
}

/*! \brief Writes of which shards divide every dimension, and which of the updates are any. */
struct EvenWrites {
  Writes writes;
  ir::Expr is_update;  // null: all are
};

// Elements behind the last one may be anything.
EvenWrites Lengthened(Writes writes, Writer* w) {
  const int num = static_cast<int>(writes.positions.size());
  for (int d = writes.begin; d < writes.begin + num; ++d) writes.data = w->Even(writes.data, d);
  ir::Expr is_update;
  for (int d = writes.begin; d < writes.begin + writes.num_update_dims; ++d) {
    const int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(writes.updates))[d]);
    writes.updates = w->Even(writes.updates, d);
    const int64_t even = ir::StaticDim(ir::ShapeOf(TensorTypeOf(writes.updates))[d]);
    if (even == size) continue;
    for (ir::Expr& each : writes.positions) {
      if (ir::StaticDim(ir::ShapeOf(TensorTypeOf(each))[d]) == size)
        each = w->Resized(each, d, even);
    }
    ir::Expr place = w->Positions(w->ShardingOf(writes.updates).dims[d], ir::MakeInt(even));
    ir::Expr is =
        Between(w->Write(ir::make::kLess, place, w->Scalar(static_cast<double>(size), kInt64)), d,
                RankOf(writes.updates) - d - 1, w);
    is_update = is_update.defined() ? w->Write(ir::make::kLogicalAnd, is_update, is) : is;
  }
  return {std::move(writes), is_update};
}

/*! \brief Positions from the beginning, and the updates to write: those with positions within
 * dimensions that are not sharded. What lies outside of a sharded one is in none of its shards. */
void Bound(EvenWrites* even, const ir::NodeArray<ir::Expr>& shape, Writer* w) {
  Writes& writes = even->writes;
  const mesh::Sharding sharding = w->ShardingOf(writes.data);
  const size_t num = writes.positions.size();
  for (size_t i = 0; i < num; ++i) {
    ir::Expr& positions = writes.positions[i];
    const int dim = writes.begin + static_cast<int>(i);
    const bool is_sharded = !sharding.dims[dim].empty();
    if (num == 1 && !is_sharded && !even->is_update.defined()) return;  // as the kernel has it
    positions = FromBegin(positions, shape[dim], w);
    if (is_sharded) continue;
    ir::Expr is = AreWithin(positions, shape[dim], w);
    even->is_update =
        even->is_update.defined() ? w->Write(ir::make::kLogicalAnd, even->is_update, is) : is;
  }
}

// Dimensions: before.., shards of the data.., shards of the updates.., places, behind..
ir::Expr Scatter(const Writes& uneven, Writer* w) {
  EvenWrites even = Lengthened(uneven, w);
  Bound(&even, ir::ShapeOf(TensorTypeOf(uneven.data)), w);
  const auto& [writes, is_update] = even;
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
  std::vector<int> of_shards;
  for (int d = begin; d < of_updates; ++d) of_shards.push_back(d);
  if (is_update.defined()) {
    ir::Expr is = w->ExpandDims(shards.Split(is_update, w), of_shards);
    is_own = is_own.defined() ? w->Write(ir::make::kLogicalAnd, is_own, is) : is;
  }
  const int axis = of_updates + static_cast<int>(axes.size());
  std::vector<int> new_dims;
  for (int d = of_updates; d < axis; ++d) new_dims.push_back(d);
  data = w->ExpandDims(data, new_dims);
  const Combination* combination = CombinationOf(writes.mode);
  std::optional<double> neutral;
  if (combination != nullptr) neutral = combination->neutral;
  const bool writes_behind = is_own.defined() && !neutral;
  if (writes_behind)
    data =
        w->Write(ir::make::kConcat, ir::MakeTuple({data, Cut(data, axis, 0, 1, w)}), int64_t(axis));
  if (is_own.defined()) {
    updates = w->Write(ir::make::kWhere, is_own, w->ExpandDims(updates, of_shards),
                       w->Scalar(neutral.value_or(0), DtypeOf(updates)));
    const double other = writes_behind ? static_cast<double>(blocks.places()) : 0;
    place = w->Write(ir::make::kWhere, is_own, place, w->Scalar(other, DtypeOf(place)));
  }
  if (!HaveSameShape(place, updates))
    place =
        w->Write(ir::make::kAdd, place, w->Write(ir::make::kZerosLike, updates, DtypeOf(place)));
  if (!axes.empty()) {
    ir::Expr others = neutral ? w->Scalar(*neutral, DtypeOf(data)) : data;
    data = w->Write(ir::make::kWhere, IsFirst(axes, of_updates, RankOf(data), w), data, others);
  }
  ir::Expr written = w->Write(
      ir::make::kScatterElements, data, Flatten(place, axis, writes.num_update_dims, w),
      Flatten(updates, axis, writes.num_update_dims, w), int64_t(axis), ffi::String(writes.mode));
  if (writes_behind) written = Cut(written, axis, 0, blocks.places(), w);
  if (!axes.empty())
    written = w->Reduce(combination->reduce, written, new_dims, /*keepdims=*/false);
  written = blocks.Join(written, w);
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(TensorTypeOf(uneven.data));
  for (int d = begin; d < begin + static_cast<int>(positions.size()); ++d)
    written = w->Resized(written, d, ir::StaticDim(shape[d]));
  return written;
}

ir::Expr DecomposeScatterElements(const DecomposedCall& call, Writer* w) {
  ir::Expr data = call.arg(0);
  int axis = NormalizeAxis(ir::attrs::kScatterElementsAxis.Int(call.attrs(), 0), RankOf(data));
  return Scatter({data,
                  axis,
                  {call.arg(1)},
                  call.arg(2),
                  1,
                  ir::attrs::kScatterElementsReduction.Text(call.attrs())},
                 w);
}

// indices [i.. m], updates [i.. t..], data [m dimensions.. t..]
ir::Expr DecomposeScatterNd(const DecomposedCall& call, Writer* w) {
  ir::Expr data = call.arg(0), indices = call.arg(1);
  std::vector<ir::Expr> positions = Columns(indices, w);
  const int behind = RankOf(data) - static_cast<int>(positions.size());
  for (ir::Expr& each : positions) each = Between(each, 0, behind, w);
  const int last = RankOf(indices) - 1;
  return Scatter(
      {data, 0, positions, call.arg(2), last, ir::attrs::kScatterNDReduction.Text(call.attrs())},
      w);
}

ir::Expr DecomposeIndexPut(const DecomposedCall& call, Writer* w) {
  ir::Expr data = call.arg(0), values = call.arg(2);
  auto tuple = ir::Tuple::Cast(call.arg(1));
  ffi::Array<ir::Expr> indices{call.arg(1)};
  if (tuple.defined()) indices = tuple.fields();
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
    positions.push_back(all);
  }
  if (RankOf(values) != rank) values = w->Reshape(values, shape);
  const bool accumulates = ir::attrs::kIndexPutAccumulate.Bool(call.attrs());
  return Scatter({data, 0, positions, values, rank, accumulates ? "add" : "update"}, w);
}

// The sum of the gradients of all results that a row was looked up for.
ir::Expr DecomposeTakeBackward(const DecomposedCall& call, Writer* w) {
  ir::Expr table = call.arg(1);
  const DLDataType dtype = DtypeOf(table);
  int rank = RankOf(table);
  int axis = (*ReadAxes(ir::attrs::kTakeAxis(call.attrs()), rank))[0];
  return Scatter({w->Write(ir::make::kZerosLike, table, dtype),
                  axis,
                  {Between(call.arg(2), axis, rank - axis - 1, w)},
                  w->Cast(call.arg(0), dtype),
                  1,
                  "add"},
                 w);
}

// Every place of a shard takes the row of the source that is written there, if one is.
ir::Expr DecomposeSliceScatter(const DecomposedCall& call, Writer* w) {
  ir::Expr data = call.arg(0), source = call.arg(1);
  const int rank = RankOf(data);
  const int axis = NormalizeAxis(ir::attrs::kSliceScatterAxis.Int(call.attrs(), 0), rank);
  auto number = [&call](int arg) { return ir::IntImm::Cast(call.arg(arg)).value(); };
  auto scalar = [w](int64_t value) { return w->Scalar(static_cast<double>(value), kInt64); };
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(TensorTypeOf(data));
  ir::Expr places = w->Positions(call.DecomposedAxes(), shape[axis]);
  ir::Expr from_start = w->Write(ir::make::kSubtract, places, scalar(number(2)));
  ir::Expr step = scalar(number(4)), zero = w->Scalar(0, kInt64);
  const int64_t size = ir::StaticDim(shape[axis]);
  const ir::Expr conditions[] = {
      w->Write(ir::make::kGreaterEqual, from_start, zero),
      w->Write(ir::make::kLess, places, scalar(std::min(number(3), size))),
      w->Write(ir::make::kEqual, w->Write(ir::make::kFloorMod, from_start, step), zero)};
  ir::Expr is_written = w->Write(ir::make::kLogicalAnd, conditions[0], conditions[1]);
  is_written = w->Write(ir::make::kLogicalAnd, is_written, conditions[2]);
  const int64_t rows = ir::StaticDim(ir::ShapeOf(TensorTypeOf(source))[axis]);
  ir::Expr row = w->Write(ir::make::kClip, w->Write(ir::make::kFloorDivide, from_start, step),
                          ir::MakeInt(0), ir::MakeInt(rows - 1));
  ir::Expr taken = w->Write(ir::make::kTake, source, row, int64_t(axis), ffi::String("clip"));
  return w->Write(ir::make::kWhere, Between(is_written, 0, rank - axis - 1, w), taken, data);
}

// ---- whether anything is added

bool IndexPutAdds(const OpView& view) {
  return ir::attrs::kIndexPutAccumulate.Bool(view.call.attrs());
}

bool ScatterElementsAdds(const OpView& view) {
  return ir::attrs::kScatterElementsReduction.Text(view.call.attrs()) != "update";
}

bool ScatterNdAdds(const OpView& view) {
  return ir::attrs::kScatterNDReduction.Text(view.call.attrs()) != "update";
}

// ---- the records

const Operators kScatter(
    "scatter",
    {"dimensions not written to by position", "",
     "positions of what is written in order, or of less than is written to",
     "dimensions written to: every shard skips what lies in others; positions of much that is "
     "accumulated: what shards come to is reduced"},
    {Operator("relax.index_put", IndexPut)
         .Adds(Accumulation::kSums, IndexPutAdds)
         .TakesTuple()
         .Decompose(DecomposeIndexPut)
         .Pad(Padding::kDecomposed),
     Operator("relax.scatter_elements", ScatterElements)
         .Adds(Accumulation::kSums, ScatterElementsAdds)
         .Decompose(DecomposeScatterElements)
         .Pad(Padding::kDecomposed)
         .Tails(OperandTails::kPositions),
     Operator("relax.scatter_nd", ScatterNd)
         .Adds(Accumulation::kSums, ScatterNdAdds)
         .Decompose(DecomposeScatterNd)
         .Pad(Padding::kDecomposed)});
const Operators kSliceScatter("indexing",
                              {"dimensions that are not cut", "", "the slice that is written",
                               "the dimension written to: every shard writes what lies in it"},
                              {Operator("relax.slice_scatter", SliceScatter)
                                   .Decompose(DecomposeSliceScatter)
                                   .Pad(Padding::kDecomposed)});
const Operators kTakeBackward("gather",
                              {"others", "positions: sum", "",
                               "the dimension looked up: every shard adds what lies in it"},
                              {Operator("relax.grad.take_backward", TakeBackward)
                                   .Adds(Accumulation::kSums)
                                   .Decompose(DecomposeTakeBackward)
                                   .Pad(Padding::kDecomposed)});

}  // namespace

}  // namespace distir::ops
