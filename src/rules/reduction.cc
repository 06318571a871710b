// Reductions over dimensions, and operators that keep the shape but look along whole dimensions
// (softmax, norms, scans, sorts).
#include "rules/axes.h"
#include "rules/registry.h"

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
const ir::AttrField kFlipAxis("relax.attrs.FlipAttrs", "axis");

// Dimensions of the operand in `mask` vanish (or stay as 1 with keepdims); the others pass through.
// A kind of kNone means that the shards of a reduced dimension cannot be combined: it is
// replicated.
FactorRule ReduceDims(const OpView& view, const std::vector<bool>& mask, bool keepdims,
                      mesh::Reduction kind) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  int result_dim = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (mask[d]) {
      int factor = kind == mesh::Reduction::kNone ? builder.Replicate(sizes[d])
                                                  : builder.Reduce(sizes[d], kind);
      builder.Operand(0, static_cast<int>(d), factor);
      if (keepdims) ++result_dim;
    } else {
      int factor = builder.Parallel(sizes[d]);
      builder.Operand(0, static_cast<int>(d), factor);
      for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, result_dim, factor);
      ++result_dim;
    }
  }
  return builder.Finish();
}

template <mesh::Reduction kind>
FactorRule Statistical(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  std::vector<bool> mask = AxisMask(kStatisticalAxis(attrs), ShardableRank(view.operands[0]));
  return ReduceDims(view, mask, kStatisticalKeepdims.Bool(attrs), kind);
}

// The mean of integers is truncated, so means of shards do not combine to it.
FactorRule Mean(const OpView& view) {
  const ir::PrimType& dtype = view.operands[0].dtype();
  bool is_float =
      dtype.defined() && (dtype.dtype().code == kDLFloat || dtype.dtype().code == kDLBfloat);
  return is_float ? Statistical<mesh::Reduction::kMean>(view)
                  : Statistical<mesh::Reduction::kNone>(view);
}

FactorRule ArgReduce(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  std::vector<bool> mask = AxisMask(kArgAxis(attrs), ShardableRank(view.operands[0]));
  return ReduceDims(view, mask, kArgKeepdims.Bool(attrs), mesh::Reduction::kNone);
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

using mesh::Reduction;

const RuleTable kSum("reduction", {"others", "axes: sum"},
                     {{"relax.sum", Statistical<Reduction::kSum>}});
const RuleTable kProd("reduction", {"others", "axes: product"},
                      {{"relax.prod", Statistical<Reduction::kProd>}});
const RuleTable kMax("reduction", {"others", "axes: maximum"},
                     {{"relax.max", Statistical<Reduction::kMax>}});
const RuleTable kMin("reduction", {"others", "axes: minimum"},
                     {{"relax.min", Statistical<Reduction::kMin>}});
const RuleTable kMean("reduction", {"others", "axes: mean", "axes of integers"},
                      {{"relax.mean", Mean}});
const RuleTable kWhole("reduction", {"others", "", "axes"},
                       {{"relax.argmax", ArgReduce},
                        {"relax.argmin", ArgReduce},
                        {"relax.median", Statistical<Reduction::kNone>},
                        {"relax.std", Statistical<Reduction::kNone>},
                        {"relax.variance", Statistical<Reduction::kNone>}});

const RuleTable kNormalizations("normalization", {"others", "", "axes, weights"},
                                {{"relax.nn.softmax", WholeAlongAxis<&kSoftmaxAxis>},
                                 {"relax.nn.log_softmax", WholeAlongAxis<&kSoftmaxAxis>},
                                 {"relax.nn.layer_norm", WholeAlongAxis<&kLayerNormAxes>},
                                 {"relax.nn.rms_norm", WholeAlongAxis<&kRmsNormAxes>}});

const RuleTable kAlongAxis("along an axis", {"others", "", "axis"},
                           {{"relax.argsort", WholeAlongAxis<&kArgsortAxis>},
                            {"relax.cumprod", WholeAlongAxis<&kScanAxis>},
                            {"relax.cumsum", WholeAlongAxis<&kScanAxis>},
                            {"relax.flip", WholeAlongAxis<&kFlipAxis>},
                            {"relax.sort", WholeAlongAxis<&kSortAxis>},
                            {"relax.topk", WholeAlongAxis<&kTopkAxis>}});

}  // namespace

}  // namespace rules
}  // namespace distir
