// Scans, extremes and the top elements along a sharded dimension: every shard does its own part,
// and one result of each of them is combined.
#include <algorithm>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "ops/family.h"
#include "rules/factor/reduced_dims.h"

namespace distir::ops {

namespace {

// ---- factor rules

FactorRule ArgReduce(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  std::vector<bool> mask =
      AxisMask(ir::attrs::kArgmaxArgminAxis(attrs), ShardableRank(view.operands[0]));
  bool is_flattened = std::count(mask.begin(), mask.end(), true) != 1;
  return rules::ReduceDims(view, mask, ir::attrs::kArgmaxArgminKeepdims.Bool(attrs),
                           [&](RuleBuilder* builder, int dim, int64_t size) {
                             return is_flattened
                                        ? builder->NeedsReplication(size)
                                        : DecomposedIfKnown(view.operands[0], dim, builder);
                           });
}

// Results shaped like the first operand, except along the dimensions in `mask`, which every device
// needs whole. Further operands (weights) are aligned with the dimensions in `mask`, so they are
// replicated.
FactorRule WholeAlong(const OpView& view, const std::vector<bool>& mask) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    if (mask[d]) continue;
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, d, factor);
  }
  FactorRule rule = builder.Finish();
  rule.is_pass_through = false;
  return rule;
}

template <const ir::AttrField* axis>
FactorRule WholeAlongAxis(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  for (const auto& result : view.results) {
    if (ShardableRank(result) != rank) return ReplicateAll(view);  // a scan of the flattened tensor
  }
  return WholeAlong(view, AxisMask((*axis)(view.call.attrs()), rank));
}

FactorRule Scan(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  if (ShardableRank(view.results[0]) != rank) return ReplicateAll(view);  // of the flattened tensor
  std::vector<bool> mask = AxisMask(ir::attrs::kScanopAxis(view.call.attrs()), rank);
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  for (int d = 0; d < rank; ++d) {
    int factor =
        mask[d] ? DecomposedIfKnown(view.operands[0], d, &builder) : builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
  }
  return WithStatistics(builder.Finish());
}

FactorRule Topk(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  int axis = NormalizeAxis(ir::attrs::kTopKAxis.Int(view.call.attrs(), -1), rank);
  if (ir::attrs::kTopKK.Int(view.call.attrs(), 1) < 1)
    return WholeAlongAxis<&ir::attrs::kTopKAxis>(view);  // all
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  for (int d = 0; d < rank; ++d) {
    int factor =
        d == axis ? DecomposedIfKnown(view.operands[0], d, &builder) : builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    for (size_t r = 0; d != axis && r < view.results.size(); ++r) builder.Result(r, d, factor);
  }
  return builder.Finish();
}

// ---- tails: elements that no others come behind

Tail Lowest(const OpView&) { return Tail::kLowest; }
Tail Highest(const OpView&) { return Tail::kHighest; }
// NaN is above all numbers, and of equal elements the first comes first.
Tail LastOfTopk(const OpView& view) {
  if (ir::attrs::kTopKLargest.Bool(view.call.attrs())) return Tail::kLowest;
  return OnFloats(view) ? Tail::kNotANumber : Tail::kHighest;
}

// ---- decompositions

/*! \brief The operand with the sharded dimension (n,) at `axis` as (shards, n / shards). */
struct OrderedShards {
  ir::Expr x;
  int64_t count;
  int64_t length;  // n / shards
};

OrderedShards Split(const DecomposedCall& call, int axis, Writer* w) {
  ir::Expr x = call.arg(0);
  int64_t shards = mesh::NumShards(call.DecomposedAxes());
  int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[axis]);
  return {w->Reshape(x, SplitShape(x, axis, shards)), shards, size / shards};
}

/*! \brief Offset of a device's shard, as dimension `axis` of `rank`. */
ir::Expr Offset(const DecomposedCall& call, int64_t length, int axis, int rank, DLDataType dtype,
                Writer* w) {
  ir::Expr index = w->Cast(w->ShardIndex(call.DecomposedAxes(), axis, rank), dtype);
  return w->Write(ir::make::kMultiply, index, w->Scalar(static_cast<double>(length), dtype));
}

/*! \brief The value replicated along dimension `dim`. */
ir::Expr Gathered(const ir::Expr& x, int dim, Writer* w) {
  mesh::Sharding sharding = w->ShardingOf(x);
  sharding.dims[dim].clear();
  return w->Placed(x, sharding);
}

// The first of the positions at which a shard has the extreme of all, which is NaN where there is
// one, and then is equal to none.
template <const ir::GlobalFunction* arg_reduce, const ir::GlobalFunction* reduce>
ir::Expr DecomposeArgReduce(const DecomposedCall& call, Writer* w) {
  int rank = RankOf(call.arg(0));
  int axis = Marked(AxisMask(ir::attrs::kArgmaxArgminAxis(call.attrs()), rank))[0];
  auto [x, shards, length] = Split(call, axis, w);
  std::vector<int> within{axis + 1};
  ir::Expr extreme = w->Reduce(*reduce, x, within);
  ir::Expr position = w->Write(*arg_reduce, x, int64_t(axis + 1), true);
  DLDataType dtype = DtypeOf(position);
  ir::Expr of_whole =
      w->Write(ir::make::kAdd, position, Offset(call, length, axis, rank + 1, dtype, w));
  ir::Expr is_extreme = w->Write(ir::make::kEqual, extreme, w->Reduce(*reduce, extreme, {axis}));
  if (IsFloat(DtypeOf(x)))
    is_extreme = w->Write(ir::make::kLogicalOr, is_extreme, w->Write(ir::make::kIsNan, extreme));
  ir::Expr last = w->Scalar(static_cast<double>(shards * length - 1), dtype);
  ir::Expr first =
      w->Reduce(ir::make::kMin, w->Write(ir::make::kWhere, is_extreme, of_whole, last), {axis});
  std::vector<int> gone{axis};
  if (!ir::attrs::kArgmaxArgminKeepdims.Bool(call.attrs())) gone.push_back(axis + 1);
  return w->Squeeze(first, gone);
}

// Every shard scans its own part and adds what the shards before it come to.
template <const ir::GlobalFunction* scan, const ir::GlobalFunction* total,
          const ir::GlobalFunction* combine>
ir::Expr DecomposeScan(const DecomposedCall& call, Writer* w) {
  ir::Expr whole = call.arg(0);
  int axis = Marked(AxisMask(ir::attrs::kScanopAxis(call.attrs()), RankOf(whole)))[0];
  auto [x, shards, length] = Split(call, axis, w);
  auto stated = ir::attrs::kScanopDtype(call.attrs()).as<DLDataType>();
  x = w->Cast(x, stated && stated->bits > 0 ? *stated : DtypeOf(x));
  DLDataType dtype = DtypeOf(x);
  ir::Expr totals = Gathered(w->Reduce(*total, x, {axis + 1}), axis, w);
  ir::Expr before = w->Write(*scan, totals, int64_t(axis), dtype, true);
  bool is_exclusive = ir::attrs::kScanopExclusive.Bool(call.attrs());
  ir::Expr own = w->Write(*scan, x, int64_t(axis + 1), dtype, is_exclusive);
  return w->Reshape(w->Write(*combine, own, before), ir::ShapeOf(TensorTypeOf(whole)));
}

// The top elements of all are among those of the shards. Of equal ones the first comes first, in
// and among shards.
ir::Expr DecomposeTopk(const DecomposedCall& call, Writer* w) {
  ir::Expr whole = call.arg(0);
  const ir::Node& attrs = call.attrs();
  int rank = RankOf(whole);
  int axis = NormalizeAxis(ir::attrs::kTopKAxis.Int(attrs, -1), rank);
  auto [x, shards, length] = Split(call, axis, w);
  int64_t wanted = ir::attrs::kTopKK.Int(attrs, 1);
  bool largest = ir::attrs::kTopKLargest.Bool(attrs);
  DLDataType dtype = ir::attrs::kTopKDtype(attrs).cast<DLDataType>();
  int64_t count = std::min(wanted, length);
  auto top = [&](const ir::Expr& of, int64_t k, int dim) {
    return w->Write(ir::make::kTopk, of, k, int64_t(dim), ffi::String("both"), largest, dtype);
  };
  ir::Expr own = top(x, count, axis + 1);
  ir::Expr offset = Offset(call, length, axis, rank + 1, dtype, w);
  ir::Expr positions = w->Write(ir::make::kAdd, w->Field(own, 1), offset);
  ffi::Array<ir::Expr> shape = ir::ShapeOf(TensorTypeOf(whole));
  shape.Set(axis, ir::MakeInt(shards * count));
  ir::Expr candidates = w->Reshape(Gathered(w->Field(own, 0), axis, w), shape);
  ir::Expr best = top(candidates, wanted, axis);
  ir::Expr values = w->Field(best, 0);
  std::string returns = ir::attrs::kTopKRetType.Text(attrs);
  if (returns == "values") return values;
  positions = w->Reshape(Gathered(positions, axis, w), shape);
  ir::Expr found = w->Write(ir::make::kGatherElements, positions, w->Field(best, 1), int64_t(axis));
  return returns == "indices" ? found : ir::Expr(ir::MakeTuple({values, found}));
}

// ---- the records

const Operators kArg("reduction",
                     {"others", "", "all axes together",
                      "one axis: the extremes of the shards are reduced, then their positions"},
                     {Operator("relax.argmax", ArgReduce)
                          .Decompose(DecomposeArgReduce<&ir::make::kArgmax, &ir::make::kMax>)
                          .Pad(Padding::kPositions)
                          .DecomposedTail(Lowest),
                      Operator("relax.argmin", ArgReduce)
                          .Decompose(DecomposeArgReduce<&ir::make::kArgmin, &ir::make::kMin>)
                          .Pad(Padding::kPositions)
                          .DecomposedTail(Highest)});
const Operators kSort(
    "along an axis", {"others", "", "axis: any element may have to move to any shard"},
    {Operator("relax.argsort", WholeAlongAxis<&ir::attrs::kArgsortAxis>).Pad(Padding::kParallel),
     Operator("relax.sort", WholeAlongAxis<&ir::attrs::kSortAxis>).Pad(Padding::kParallel)});
const Operators kScan(
    "along an axis",
    {"others", "", "all of a flattened tensor",
     "axis: shards are scanned alone, their totals gathered and added"},
    {Operator("relax.cumprod", Scan)
         .Adds(Accumulation::kScans)
         .Decompose(DecomposeScan<&ir::make::kCumprod, &ir::make::kProd, &ir::make::kMultiply>)
         .Pad(Padding::kPositions),
     Operator("relax.cumsum", Scan)
         .Adds(Accumulation::kScans)
         .Decompose(DecomposeScan<&ir::make::kCumsum, &ir::make::kSum, &ir::make::kAdd>)
         .Pad(Padding::kPositions)
         .Commutes(Commutation().Sum(In::kAll).Mean(In::kAll))});
const Operators kTopk(
    "along an axis",
    {"others", "", "",
     "axis: the top elements of the shards are gathered, then those of them found"},
    {Operator("relax.topk", Topk)
         .Decompose(DecomposeTopk)
         .Pad(Padding::kPositions)
         .DecomposedTail(LastOfTopk)});

}  // namespace

}  // namespace distir::ops
