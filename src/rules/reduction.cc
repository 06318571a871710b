// Reductions over dimensions, and operators that keep the shape but look along whole dimensions
// (softmax, norms, scans, sorts).
#include <algorithm>

#include "rules/axes.h"
#include "rules/registry.h"
#include "rules/special.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kStatisticalAxis("relax.attrs.StatisticalAttrs", "axis");
const ir::AttrField kStatisticalKeepdims("relax.attrs.StatisticalAttrs", "keepdims");
const ir::AttrField kArgAxis("relax.attrs.ArgmaxArgminAttrs", "axis");
const ir::AttrField kArgKeepdims("relax.attrs.ArgmaxArgminAttrs", "keepdims");
const ir::AttrField kSoftmaxAxis("relax.attrs.SoftmaxAttrs", "axis");
const ir::AttrField kLayerNormAxes("relax.attrs.LayerNormAttrs", "axes");
const ir::AttrField kRmsNormAxes("relax.attrs.RMSNormAttrs", "axes");
const ir::AttrField kScanAxis("relax.attrs.ScanopAttrs", "axis");
const ir::AttrField kSortAxis("relax.attrs.SortAttrs", "axis");
const ir::AttrField kArgsortAxis("relax.attrs.ArgsortAttrs", "axis");
const ir::AttrField kTopkAxis("relax.attrs.TopKAttrs", "axis");
const ir::AttrField kTopkCount("relax.attrs.TopKAttrs", "k");

// Dimensions of the operand in `mask` vanish (or stay as 1 with keepdims); the others pass through.
// `add` makes the factor of a dimension that vanishes.
template <typename Add>
FactorRule ReduceDims(const OpView& view, const std::vector<bool>& mask, bool keepdims,
                      const Add& add) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  int result_dim = 0;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    if (mask[d]) {
      builder.Operand(0, d, add(&builder, d, sizes[d]));
      if (keepdims) ++result_dim;
    } else {
      int factor = builder.Parallel(sizes[d]);
      builder.Operand(0, d, factor);
      for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, result_dim, factor);
      ++result_dim;
    }
  }
  return builder.Finish();
}

template <typename Add>
FactorRule ReduceAxes(const OpView& view, const Add& add) {
  const ir::Node& attrs = view.call.attrs();
  std::vector<bool> mask = AxisMask(kStatisticalAxis(attrs), ShardableRank(view.operands[0]));
  return ReduceDims(view, mask, kStatisticalKeepdims.Bool(attrs), add);
}

int Replicated(RuleBuilder* builder, int, int64_t size) { return builder->Replicate(size); }

template <mesh::Reduction kind>
FactorRule Statistical(const OpView& view) {
  return ReduceAxes(
      view, [](RuleBuilder* builder, int, int64_t size) { return builder->Reduce(size, kind); });
}

bool IsFloat(const OpView& view) {
  const ir::PrimType& dtype = view.operands[0].dtype();
  return dtype.defined() && (dtype.dtype().code == kDLFloat || dtype.dtype().code == kDLBfloat);
}

// The mean of integers is truncated, so means of shards do not combine to it: they are summed.
FactorRule Mean(const OpView& view) {
  if (IsFloat(view)) return Statistical<mesh::Reduction::kMean>(view);
  return ReduceAxes(view, [&view](RuleBuilder* builder, int dim, int64_t) {
    return SpecialIfKnown(view.operands[0], dim, builder);
  });
}

FactorRule Variance(const OpView& view) {
  if (!IsFloat(view)) return ReduceAxes(view, Replicated);
  return ReduceAxes(view,
                    [](RuleBuilder* builder, int, int64_t size) { return builder->Special(size); });
}

FactorRule Median(const OpView& view) { return ReduceAxes(view, Replicated); }

FactorRule ArgReduce(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  std::vector<bool> mask = AxisMask(kArgAxis(attrs), ShardableRank(view.operands[0]));
  bool is_flattened = std::count(mask.begin(), mask.end(), true) != 1;
  return ReduceDims(view, mask, kArgKeepdims.Bool(attrs),
                    [&](RuleBuilder* builder, int dim, int64_t size) {
                      return is_flattened ? builder->Replicate(size)
                                          : SpecialIfKnown(view.operands[0], dim, builder);
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

// The same, except that the dimensions in `mask` are special; weights have these dimensions alone,
// in their order.
FactorRule SpecialAlong(const OpView& view, const std::vector<bool>& mask) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  int weight_dim = 0;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    int factor = mask[d] ? builder.Special(sizes[d]) : builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, d, factor);
    if (!mask[d]) continue;
    for (size_t i = 1; i < view.operands.size(); ++i) {
      if (weight_dim < ShardableRank(view.operands[i]) &&
          SameSize(view.operands[i], weight_dim, view.operands[0], d))
        builder.Operand(i, weight_dim, factor);
    }
    ++weight_dim;
  }
  return WithStatistics(builder.Finish());
}

template <const ir::AttrField* axis>
FactorRule SpecialAlongAxis(const OpView& view) {
  return SpecialAlong(view, AxisMask((*axis)(view.call.attrs()), ShardableRank(view.operands[0])));
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
  std::vector<bool> mask = AxisMask(kScanAxis(view.call.attrs()), rank);
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  for (int d = 0; d < rank; ++d) {
    int factor =
        mask[d] ? SpecialIfKnown(view.operands[0], d, &builder) : builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
  }
  return WithStatistics(builder.Finish());
}

FactorRule Topk(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  int axis = NormalizeAxis(kTopkAxis.Int(view.call.attrs(), -1), rank);
  if (kTopkCount.Int(view.call.attrs(), 1) < 1) return WholeAlongAxis<&kTopkAxis>(view);  // all
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  for (int d = 0; d < rank; ++d) {
    int factor =
        d == axis ? SpecialIfKnown(view.operands[0], d, &builder) : builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    for (size_t r = 0; d != axis && r < view.results.size(); ++r) builder.Result(r, d, factor);
  }
  return builder.Finish();
}

using mesh::Reduction;

const RuleTable kSum("reduction", {"others", "axes: sum"},
                     {{"relax.sum", Statistical<Reduction::kSum>}});
const RuleTable kProd("reduction", {"others", "axes: product"},
                      {{"relax.prod", Statistical<Reduction::kProd>}});
const RuleTable kMax("reduction", {"others", "axes: maximum"},
                     {{"relax.max", Statistical<Reduction::kMax>}});
const RuleTable kMin("reduction", {"others", "axes: minimum"},
                     {{"relax.min", Statistical<Reduction::kMin>}});
const RuleTable kMean("reduction",
                      {"others", "axes: mean", "", "axes of integers: sums are divided at the end"},
                      {{"relax.mean", Mean}});
const RuleTable kMedian("reduction", {"others", "", "axes: a median is none of those of shards"},
                        {{"relax.median", Median}});
const RuleTable kVariance("reduction",
                          {"others", "", "",
                           "axes: means of the shards, then of squared distances"},
                          {{"relax.std", Variance}, {"relax.variance", Variance}});

const RuleTable kArg("reduction",
                     {"others", "", "all axes together",
                      "one axis: the extremes of the shards are reduced, then their positions"},
                     {{"relax.argmax", ArgReduce}, {"relax.argmin", ArgReduce}});
const RuleTable kSoftmax("normalization",
                         {"others", "", "", "axis: maximum and sum of the shards are reduced"},
                         {{"relax.nn.softmax", SpecialAlongAxis<&kSoftmaxAxis>},
                          {"relax.nn.log_softmax", SpecialAlongAxis<&kSoftmaxAxis>}});
const RuleTable kLayerNorm("normalization",
                           {"others", "", "", "axes: means of the shards are reduced"},
                           {{"relax.nn.layer_norm", SpecialAlongAxis<&kLayerNormAxes>},
                            {"relax.nn.rms_norm", SpecialAlongAxis<&kRmsNormAxes>}});

const RuleTable kSort("along an axis",
                      {"others", "", "axis: any element may have to move to any shard"},
                      {{"relax.argsort", WholeAlongAxis<&kArgsortAxis>},
                       {"relax.sort", WholeAlongAxis<&kSortAxis>}});
const RuleTable kScan("along an axis",
                      {"others", "", "all of a flattened tensor",
                       "axis: shards are scanned alone, their totals gathered and added"},
                      {{"relax.cumprod", Scan}, {"relax.cumsum", Scan}});
const RuleTable kTopk(
    "along an axis",
    {"others", "", "",
     "axis: the top elements of the shards are gathered, then those of them found"},
    {{"relax.topk", Topk}});

}  // namespace

}  // namespace rules
}  // namespace distir
