// Operators that look up a tensor at positions that another tensor states. The positions are
// parallel; if the tensor is sharded, the shards' contributions are summed.
// Lookups in a table that is sharded along the dimension looked up: every device looks the position
// within a shard up in its own, keeps what is its own, and the sum of all is the result.
#include "ops/lookup.h"

#include <algorithm>
#include <limits>

#include "decompose/blocks.h"
#include "ir/build.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "ops/family.h"
#include "ops/positions.h"
#include "support/dtypes.h"

namespace distir::ops {

namespace {

using decompose::Blocks;
using decompose::Columns;

// ---- factor rules

// result = data[.., indices, ..] along `axis`; shards of the looked-up dimension add up what each
// of them has.
FactorRule Take(const OpView& view) {
  if (view.operands.size() != 2) return ReplicateAll(view);
  Sizes data = StaticSizes(view.operands[0]);
  Sizes indices = StaticSizes(view.operands[1]);
  int rank = static_cast<int>(data.size());
  auto axes = ReadAxes(ir::attrs::kTakeAxis(view.call.attrs()), rank);
  if (!axes && rank != 1) return ReplicateAll(view);  // of the flattened tensor
  int axis = axes ? (*axes)[0] : 0;
  RuleBuilder builder(view);
  int result_dim = 0;
  for (int d = 0; d < rank; ++d) {
    if (d == axis) {
      for (int k = 0; k < static_cast<int>(indices.size()); ++k) {
        int factor = builder.Parallel(indices[k]);
        builder.Operand(1, k, factor);
        builder.Result(0, result_dim++, factor);
      }
      const bool is_few = data[d] < 0 && AreFew(indices) && rules::IsNumber(view.operands[0]);
      builder.Operand(
          0, d,
          is_few ? builder.Decomposed(data[d]) : DecomposedIfKnown(view.operands[0], d, &builder));
    } else {
      int factor = builder.Parallel(data[d]);
      builder.Operand(0, d, factor);
      builder.Result(0, result_dim++, factor);
    }
  }
  return builder.Finish();
}

// result[.., i, ..] = data[.., indices[.., i, ..], ..]; shards of the data along the axis add up
// what each of them has. Indices may be shorter than the data along other dimensions; these are
// then aligned at their beginning, so shards would not match.
FactorRule GatherElements(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[1]);
  int rank = static_cast<int>(sizes.size());
  int axis = NormalizeAxis(ir::attrs::kGatherElementsAxis.Int(view.call.attrs(), 0), rank);
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == axis) builder.Operand(0, d, DecomposedIfKnown(view.operands[0], d, &builder));
    bool is_aligned = SameSize(view.operands[0], d, view.operands[1], d);
    if (d != axis && !is_aligned) continue;
    int factor = builder.Parallel(sizes[d]);
    if (d != axis) builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

/*! \brief The number of leading dimensions that the last dimension of `indices` looks up; -1 where
 * it is not known. */
int LookedUp(const ir::TensorType& indices) {
  Sizes sizes = StaticSizes(indices);
  return sizes.empty() ? -1 : static_cast<int>(sizes.back());
}

/*! \brief Gives dimensions that several positions look up together a factor each. */
void AddLookedUp(const OpView& view, int begin, int num, RuleBuilder* builder) {
  Sizes sizes = StaticSizes(view.operands[0]);
  for (int d = begin; d < begin + num; ++d) {
    if (sizes[d] <= 0) return;
  }
  for (int d = begin; d < begin + num; ++d)
    builder->Operand(0, d, DecomposedIfKnown(view.operands[0], d, builder));
}

// result[b.., i.., t..] = data[b.., indices[b.., i.., :].., t..]
FactorRule GatherNd(const OpView& view) {
  int looked_up = LookedUp(view.operands[1]);
  if (looked_up < 0) return ReplicateAll(view);
  int batch = static_cast<int>(ir::attrs::kGatherNDBatchDims.Int(view.call.attrs(), 0));
  Sizes data = StaticSizes(view.operands[0]);
  Sizes indices = StaticSizes(view.operands[1]);
  RuleBuilder builder(view);
  int result_dim = 0;
  for (int d = 0; d + 1 < static_cast<int>(indices.size()); ++d, ++result_dim) {
    if (d < batch && !SameSize(view.operands[0], d, view.operands[1], d)) continue;
    int factor = builder.Parallel(indices[d]);
    if (d < batch) builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
    builder.Result(0, result_dim, factor);
  }
  AddLookedUp(view, batch, looked_up, &builder);
  for (int d = batch + looked_up; d < static_cast<int>(data.size()); ++d) {
    int factor = builder.Parallel(data[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, result_dim++, factor);
  }
  return builder.Finish();
}

// result[i.., t..] = data[index[i..].., t..], the indices broadcast among each other.
FactorRule IndexTensor(const OpView& view) {
  int num_indices = static_cast<int>(view.operands.size()) - 1;
  Sizes data = StaticSizes(view.operands[0]);
  Sizes result = StaticSizes(view.results[0]);
  int tail = static_cast<int>(data.size()) - num_indices;
  int positions = static_cast<int>(result.size()) - tail;
  if (tail < 0 || positions < 0) return ReplicateAll(view);
  RuleBuilder builder(view);
  for (int d = 0; d < positions; ++d) {
    int factor = builder.Parallel(result[d]);
    builder.Result(0, d, factor);
    for (int i = 1; i <= num_indices; ++i) {
      int dim = d - (positions - ShardableRank(view.operands[i]));
      if (dim >= 0 && SameSize(view.operands[i], dim, view.results[0], d))
        builder.Operand(i, dim, factor);
    }
  }
  AddLookedUp(view, 0, num_indices, &builder);
  for (int d = 0; d < tail; ++d) {
    int factor = builder.Parallel(data[num_indices + d]);
    builder.Operand(0, num_indices + d, factor);
    builder.Result(0, positions + d, factor);
  }
  return builder.Finish();
}

FactorRule ReverseSequence(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  const ir::Node& attrs = view.call.attrs();
  int sequence = NormalizeAxis(ir::attrs::kReverseSequenceSeqAxis.Int(attrs, 1), rank);
  int batch = NormalizeAxis(ir::attrs::kReverseSequenceBatchAxis.Int(attrs, 0), rank);
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == sequence) continue;
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
    if (d == batch) builder.Operand(1, 0, factor);
  }
  return builder.Finish();
}

// The position among all boundaries is the sum of those among the boundaries of each shard.
FactorRule Bucketize(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  RuleBuilder builder(view);
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
  }
  int64_t boundaries = StaticSizes(view.operands[1])[0];
  builder.Operand(1, 0, builder.Reduce(boundaries, mesh::Reduction::kSum));
  return builder.Finish();
}

// A boundary that is counted only for what is above all others, or equal to the largest.
Tail BehindBoundaries(const OpView& view) {
  return IsFloat(view.operands[1]) ? Tail::kNotANumber : Tail::kHighest;
}

// probabilities [. .], samples [n .], rows [n .], result [n .]: a sample names its row.
FactorRule Multinomial(const OpView& view) {
  RuleBuilder builder(view);
  int sample = builder.Parallel(StaticSizes(view.results[0])[0]);
  builder.Operand(1, 0, sample);
  builder.Operand(2, 0, sample);
  builder.Result(0, 0, sample);
  return builder.Finish();
}

// ---- decompositions

/*! \brief Table split into its shards. */
struct Shards {
  ir::Expr table;  // with the dimension (n,) split into (shards, n / shards)
  int64_t length;  // n / shards
};

Shards Split(const ir::Expr& whole, const mesh::AxisList& axes, int axis, Writer* w) {
  int64_t shards = mesh::NumShards(axes);
  ir::Expr table = w->Even(whole, axis);
  int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(table))[axis]);
  return {w->Reshape(table, SplitShape(table, axis, shards)), size / shards};
}

/*! \brief The values where `is_own`, summed over the shards, which are dimensions `dims`. */
ir::Expr SumOfOwn(const ir::Expr& is_own, const ir::Expr& values, const std::vector<int>& dims,
                  Writer* w) {
  ir::Expr own = w->Write(ir::make::kWhere, is_own, values, w->Scalar(0, DtypeOf(values)));
  return w->Reduce(ir::make::kSum, own, dims, /*keepdims=*/false);
}

/*! \brief data[b.., p[b.., i..].., t..] for positions p, one per dimension looked up; `batch` is
 * the number of dimensions b. A position that is another shard's looks up place 0. */
ir::Expr LookUpTogether(ir::Expr data, std::vector<ir::Expr> positions, int batch, Writer* w) {
  const int num = static_cast<int>(positions.size());
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(TensorTypeOf(data));
  for (int i = 0; i < num; ++i) {
    const ir::Expr& size = shape[batch + i];
    positions[i] = Nearest(FromBegin(positions[i], size, w), size, w);
  }
  for (int i = 0; i < num; ++i) data = w->Even(data, batch + i);
  const Blocks blocks(data, batch, num, w);
  auto [is_own, place] = blocks.Find(positions, w);
  place = w->Write(ir::make::kWhere, is_own, place, w->Scalar(0, DtypeOf(place)));
  place = w->Cast(place, kInt64);  // R.gather_nd takes no other type
  ir::Expr values =
      w->Write(ir::make::kGatherNd, blocks.Split(data, w), w->ExpandDims(place, {RankOf(place)}),
               int64_t(batch + blocks.num_sharded()));
  std::vector<int> behind, shards;
  for (int d = RankOf(place); d < RankOf(values); ++d) behind.push_back(d);
  for (int i = 0; i < blocks.num_sharded(); ++i) shards.push_back(batch + i);
  return SumOfOwn(w->ExpandDims(is_own, behind), values, shards, w);
}

/*! \brief Elements on each device; -1 where they are not known. */
int64_t LocalElements(const ir::TensorType& type, const mesh::Sharding& sharding) {
  int64_t elements = 1, shards = 1;
  for (const ir::Expr& size : ir::ShapeOf(type)) {
    if (ir::StaticDim(size) < 0) return -1;
    elements *= ir::StaticDim(size);
  }
  for (const mesh::AxisList& axes : sharding.dims) shards *= mesh::NumShards(axes);
  return elements / shards;
}

/*! \brief The rows of a table of `size` of them, looked up along `axis`; NaN where the index is
 * outside. */
ir::Expr NanOutside(const ir::Expr& rows, const ir::Expr& indices, int axis, const ir::Expr& size,
                    Writer* w) {
  std::vector<int> behind;
  for (int d = axis + RankOf(indices); d < RankOf(rows); ++d) behind.push_back(d - axis);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return w->Write(ir::make::kWhere, w->ExpandDims(AreWithin(indices, size, w), behind), rows,
                  w->Scalar(nan, DtypeOf(rows)));
}

// The sum is of all that is looked up. If many positions look matrices up, that is more than the
// table, even if the sum is scattered: then the table is gathered.
ir::Expr DecomposeTake(const DecomposedCall& call, Writer* w) {
  ir::Expr table = call.arg(0), indices = call.arg(1);
  auto axes = ReadAxes(ir::attrs::kTakeAxis(call.attrs()), RankOf(table));
  int axis = axes ? (*axes)[0] : 0;
  const ir::Expr size = ir::ShapeOf(TensorTypeOf(table))[axis];
  const int64_t known = ir::StaticDim(size);
  std::string mode = ir::attrs::kTakeMode.Text(call.attrs());
  mesh::Sharding gathered = w->ShardingOf(table);
  gathered.dims[axis] = {};
  auto result = ir::TensorType::Cast(call.result());
  const int64_t of_table = LocalElements(TensorTypeOf(table), gathered);
  if (of_table >= 0 && LocalElements(result, call.sharding.results[0]) > of_table) {
    return w->Write(ir::make::kTake, w->Placed(table, gathered), indices, int64_t(axis),
                    ffi::String(mode));
  }
  const ir::Expr wanted = indices;
  if (mode == "fast") indices = FromBegin(indices, size, w);
  if (mode == "fast" || mode == "clip") indices = Nearest(indices, size, w);
  if (mode == "wrap")
    indices = w->Write(ir::make::kFloorMod, indices, NumberOf(size, DtypeOf(indices), w));
  ir::Expr rows = known < 0 ? LookUpFew(table, indices, axis, call.DecomposedAxes(), w)
                            : LookUpRows(table, indices, axis, call.DecomposedAxes(), w);
  return mode == "nan" ? NanOutside(rows, wanted, axis, size, w) : rows;
}

ir::Expr DecomposeGatherElements(const DecomposedCall& call, Writer* w) {
  int axis =
      NormalizeAxis(ir::attrs::kGatherElementsAxis.Int(call.attrs(), 0), RankOf(call.arg(0)));
  const ir::Expr& size = ir::ShapeOf(TensorTypeOf(call.arg(0)))[axis];
  ir::Expr positions = Nearest(FromBegin(call.arg(1), size, w), size, w);
  return LookUpElements(call.arg(0), positions, axis, call.DecomposedAxes(), w);
}

// The last dimension of the indices has a position for each dimension looked up.
ir::Expr DecomposeGatherNd(const DecomposedCall& call, Writer* w) {
  const int batch = static_cast<int>(ir::attrs::kGatherNDBatchDims.Int(call.attrs(), 0));
  return LookUpTogether(call.arg(0), Columns(call.arg(1), w), batch, w);
}

ir::Expr DecomposeIndexTensor(const DecomposedCall& call, Writer* w) {
  const ffi::Array<ir::Expr> indices = ir::Tuple::Cast(call.arg(1)).fields();
  int rank = 0;
  for (const ir::Expr& each : indices) rank = std::max(rank, RankOf(each));
  std::vector<ir::Expr> positions;
  for (const ir::Expr& each : indices) {
    std::vector<int> before;
    for (int d = RankOf(each); d < rank; ++d) before.push_back(static_cast<int>(before.size()));
    positions.push_back(w->ExpandDims(each, before));
  }
  return LookUpTogether(call.arg(0), positions, 0, w);
}

// ---- the records

const Operators kTake(
    "indexing",
    {"indices, other dimensions of the table", "",
     "a dimension of unknown extent that is looked up at more than 16 positions",
     "the dimension looked up: every shard gives its rows or 0, which are summed"},
    {Operator("relax.take", Take)
         .Decompose(DecomposeTake)
         .Pad(Padding::kDecomposed)
         .Tails(OperandTails::kPositions)
         .Commutes(kMovingFirst)});
const Operators kGatherElements(
    "gather",
    {"positions, other dimensions", "", "",
     "the dimension looked up: every shard gives its elements or 0, which are summed"},
    {Operator("relax.gather_elements", GatherElements)
         .Decompose(DecomposeGatherElements)
         .Pad(Padding::kDecomposed)
         .Tails(OperandTails::kPositions)
         .Commutes(kMovingFirst)});
const Operators kGather(
    "gather",
    {"positions, other dimensions", "", "",
     "what is looked up, by several positions at once: every shard gives its elements or 0, which "
     "are summed"},
    {Operator("relax.gather_nd", GatherNd)
         .Decompose(DecomposeGatherNd)
         .Pad(Padding::kDecomposed)
         .Tails(OperandTails::kPositions),
     Operator("relax.index_tensor", IndexTensor)
         .TakesTuple()
         .Decompose(DecomposeIndexTensor)
         .Pad(Padding::kDecomposed)
         .Tails(OperandTails::kPositions)});
const Operators kReverse("gather", {"batch, others", "", "sequence"},
                         {Operator("relax.reverse_sequence", ReverseSequence)
                              .Pad(Padding::kPositions)
                              .Tails(OperandTails::kPositions)});
const Operators kBucketize(
    "gather", {"all of the input", "boundaries: sum"},
    {Operator("relax.bucketize", Bucketize).Pad(Padding::kAll).CountedTail(BehindBoundaries)});
const Operators kMultinomial("gather", {"samples", "", "probabilities"},
                             {Operator("relax.multinomial_from_uniform", Multinomial)
                                  .Pad(Padding::kPositions)
                                  .Tails(OperandTails::kPositions)});

}  // namespace

// As Take, but every element has a position of its own, so shards ask for different ones: what is
// not theirs is position 0.
ir::Expr LookUpElements(const ir::Expr& whole, const ir::Expr& positions, int axis,
                        const mesh::AxisList& axes, Writer* w) {
  if (axes.empty()) return w->Write(ir::make::kGatherElements, whole, positions, int64_t(axis));
  DLDataType dtype = DtypeOf(positions);
  auto [table, length] = Split(whole, axes, axis, w);
  ir::Expr indices = w->ExpandDims(positions, {axis});
  ir::Expr divisor = w->Scalar(static_cast<double>(length), dtype);
  ir::Expr own = w->Cast(w->ShardIndex(axes, axis, RankOf(whole) + 1), dtype);
  ir::Expr is_own =
      w->Write(ir::make::kEqual, w->Write(ir::make::kFloorDivide, indices, divisor), own);
  ir::Expr within = w->Write(ir::make::kWhere, is_own,
                             w->Write(ir::make::kFloorMod, indices, divisor), w->Scalar(0, dtype));
  ir::Expr values = w->Write(ir::make::kGatherElements, table, within, int64_t(axis + 1));
  return SumOfOwn(is_own, values, {axis}, w);
}

// A position in the whole table is that within a shard, the same on all devices, and the shard.
ir::Expr LookUpRows(const ir::Expr& whole, const ir::Expr& indices, int axis,
                    const mesh::AxisList& axes, Writer* w) {
  if (axes.empty())
    return w->Write(ir::make::kTake, whole, indices, int64_t(axis), ffi::String("clip"));
  DLDataType dtype = DtypeOf(indices);
  auto [table, length] = Split(whole, axes, axis, w);
  ir::Expr divisor = w->Scalar(static_cast<double>(length), dtype);
  ir::Expr within = w->Write(ir::make::kFloorMod, indices, divisor);
  ir::Expr values =
      w->Write(ir::make::kTake, table, within, int64_t(axis + 1), ffi::String("clip"));
  // (shards, indices.., 1..) broadcasts to the values (.., shards, indices.., ..).
  int num_indices = RankOf(indices), behind = RankOf(whole) - axis - 1;
  ir::Expr shard = w->Write(ir::make::kFloorDivide, indices, divisor);
  std::vector<int> ones;
  for (int d = 0; d < behind; ++d) ones.push_back(num_indices + d);
  ir::Expr own = w->Cast(w->ShardIndex(axes, 0, 1 + num_indices + behind), dtype);
  ir::Expr is_own = w->Write(ir::make::kEqual, w->ExpandDims(shard, ones), own);
  return SumOfOwn(is_own, values, {axis}, w);
}

bool AreFew(const Sizes& positions) {
  constexpr int64_t kMost = 16;
  int64_t count = 1;
  for (int64_t size : positions) {
    if (size < 0 || size > kMost) return false;
    count *= size;
  }
  return count <= kMost;
}

ir::Expr LookUpFew(const ir::Expr& whole, const ir::Expr& positions, int axis,
                   const mesh::AxisList& axes, Writer* w) {
  const int rank = RankOf(positions);
  std::vector<int> in_front, behind;
  for (int i = 0; i < rank; ++i) in_front.push_back(axis + i);
  for (int d = axis + 1; d < RankOf(whole); ++d) behind.push_back(d - axis + rank);
  const ir::Expr all = w->Positions(axes, ir::ShapeOf(TensorTypeOf(whole))[axis]);
  const ir::Expr wanted = w->ExpandDims(w->Cast(positions, kInt64), {rank});
  const ir::Expr is_wanted = w->ExpandDims(w->Write(ir::make::kEqual, wanted, all), behind);
  return SumOfOwn(is_wanted, w->ExpandDims(whole, in_front), {axis + rank}, w);
}

}  // namespace distir::ops
