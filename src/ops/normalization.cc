// Softmax and norms: along a sharded dimension their maxima, sums and means are reduced over
// devices. Means and variances take two passes, so they are as accurate as on one device.
#include <algorithm>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "ops/family.h"
#include "rules/factor/per_channel.h"
#include "support/dtypes.h"

namespace distir::ops {

namespace {

// ---- factor rules

// Rule in which the dimensions in `mask` are decomposed; weights have these alone, in their order.
FactorRule DecomposedAlong(const OpView& view, const std::vector<bool>& mask) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  int weight_dim = 0;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    int factor = mask[d] ? builder.Decomposed(sizes[d]) : builder.Parallel(sizes[d]);
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
FactorRule DecomposedAlongAxis(const OpView& view) {
  return DecomposedAlong(view,
                         AxisMask((*axis)(view.call.attrs()), ShardableRank(view.operands[0])));
}

FactorRule BatchNorm(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  int rank = ShardableRank(view.operands[0]);
  int channel = NormalizeAxis(ir::attrs::kBatchNormAxis.Int(attrs, 1), rank);
  std::vector<bool> along(rank, ir::attrs::kBatchNormTraining.Bool(attrs));
  along[channel] = false;
  return rules::PerChannel(view, channel, along, DecomposedFactor());
}

FactorRule InstanceNorm(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  int rank = ShardableRank(view.operands[0]);
  return rules::PerChannel(view,
                           NormalizeAxis(ir::attrs::kInstanceNormChannelAxis.Int(attrs, 1), rank),
                           AxisMask(ir::attrs::kInstanceNormAxes(attrs), rank), DecomposedFactor());
}

FactorRule GroupNorm(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  int rank = ShardableRank(view.operands[0]);
  int channel = NormalizeAxis(ir::attrs::kGroupNormChannelAxis.Int(attrs, 1), rank);
  int64_t groups = ir::attrs::kGroupNormNumGroups.Int(attrs, 1);
  std::vector<bool> along = AxisMask(ir::attrs::kGroupNormAxes(attrs), rank);
  // The number of groups on a worker is only known with the number of channels.
  bool is_known = StaticSizes(view.operands[0])[channel] >= 0;
  if (!is_known) along[channel] = true;
  return rules::PerChannel(view, channel, along, DecomposedIf(is_known), groups);
}

ir::Node LocalGroups(const OpView& global, const OpView& local) {
  const ir::Node& attrs = global.call.attrs();
  int channel = NormalizeAxis(ir::attrs::kGroupNormChannelAxis.Int(attrs, 1),
                              ShardableRank(global.operands[0]));
  int64_t whole = StaticSizes(global.operands[0])[channel];
  int64_t part = StaticSizes(local.operands[0])[channel];
  if (whole == part) return attrs;
  return ir::WithField(attrs, "num_groups",
                       ir::attrs::kGroupNormNumGroups.Int(attrs, 1) * part / whole);
}

// ---- decompositions

/*! \brief TVM computes norms of shorter floats in this type. */
DLDataType Wide(DLDataType dtype) { return dtype.bits < 32 ? kFloat32 : dtype; }

ir::Expr DecomposeSoftmax(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  std::vector<int> axis = Marked(AxisMask(ir::attrs::kSoftmaxAxis(call.attrs()), RankOf(x)));
  ir::Expr powers = w->Write(ir::make::kExp,
                             w->Write(ir::make::kSubtract, x, w->Reduce(ir::make::kMax, x, axis)));
  return w->Write(ir::make::kDivide, powers, w->Reduce(ir::make::kSum, powers, axis));
}

ir::Expr DecomposeLogSoftmax(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  std::vector<int> axis = Marked(AxisMask(ir::attrs::kSoftmaxAxis(call.attrs()), RankOf(x)));
  ir::Expr shifted = w->Write(ir::make::kSubtract, x, w->Reduce(ir::make::kMax, x, axis));
  ir::Expr sum = w->Reduce(ir::make::kSum, w->Write(ir::make::kExp, shifted), axis);
  return w->Write(ir::make::kSubtract, shifted, w->Write(ir::make::kLog, sum));
}

/*! \brief A weight of the dimensions `dims` of a tensor of `rank`, as one that broadcasts to it. */
ir::Expr Aligned(const ir::Expr& weight, const std::vector<bool>& dims, Writer* w) {
  std::vector<int> ones;
  bool is_behind = false;  // dimensions before the first of the weight need not be there
  for (size_t d = 0; d < dims.size(); ++d) {
    is_behind = is_behind || dims[d];
    if (!dims[d] && is_behind) ones.push_back(static_cast<int>(d));
  }
  int first = static_cast<int>(std::find(dims.begin(), dims.end(), true) - dims.begin());
  for (int& d : ones) d -= first;
  return w->ExpandDims(weight, ones);
}

/*! \brief x over the root of its mean square. */
ir::Expr Scaled(const ir::Expr& x, const ir::Expr& like, const std::vector<int>& dims,
                double epsilon, Writer* w) {
  ir::Expr variance = w->Reduce(ir::make::kMean, w->Write(ir::make::kSquare, x), dims);
  ir::Expr shifted = w->Write(ir::make::kAdd, variance, w->Scalar(epsilon, DtypeOf(variance)));
  return w->Write(ir::make::kMultiply, like, w->Write(ir::make::kRsqrt, shifted));
}

/*! \brief x without its mean over `dims`, scaled to variance 1, in the type of x. */
ir::Expr Normalized(const ir::Expr& x, const std::vector<int>& dims, double epsilon, Writer* w) {
  ir::Expr wide = w->Cast(x, Wide(DtypeOf(x)));
  ir::Expr centred = w->Write(ir::make::kSubtract, wide, w->Reduce(ir::make::kMean, wide, dims));
  return w->Cast(Scaled(centred, centred, dims, epsilon, w), DtypeOf(x));
}

/*! \brief x * gamma + beta, without what the call says to leave out; both have `dims` of x. */
ir::Expr Affine(const DecomposedCall& call, ir::Expr x, const ir::AttrField& scale,
                const ir::AttrField& center, const std::vector<bool>& dims, Writer* w) {
  if (scale.Bool(call.attrs()))
    x = w->Write(ir::make::kMultiply, x, Aligned(w->Named(call.arg(1)), dims, w));
  if (center.Bool(call.attrs()))
    x = w->Write(ir::make::kAdd, x, Aligned(w->Named(call.arg(2)), dims, w));
  return x;
}

ir::Expr DecomposeLayerNorm(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  std::vector<bool> axes = AxisMask(ir::attrs::kLayerNormAxes(call.attrs()), RankOf(x));
  double epsilon = ir::attrs::kLayerNormEpsilon(call.attrs()).cast<double>();
  return Affine(call, Normalized(x, Marked(axes), epsilon, w), ir::attrs::kLayerNormScale,
                ir::attrs::kLayerNormCenter, axes, w);
}

ir::Expr DecomposeRmsNorm(const DecomposedCall& call, Writer* w) {
  std::vector<bool> axes = AxisMask(ir::attrs::kRMSNormAxes(call.attrs()), RankOf(call.arg(0)));
  double epsilon = ir::attrs::kRMSNormEpsilon(call.attrs()).cast<double>();
  const DLDataType wide = Wide(DtypeOf(call.arg(0)));
  ir::Expr x = w->Cast(call.arg(0), wide);
  ir::Expr weight = Aligned(w->Cast(call.arg(1), wide), axes, w);
  ir::Expr scaled = Scaled(x, x, Marked(axes), epsilon, w);
  return w->Cast(w->Write(ir::make::kMultiply, scaled, weight), DtypeOf(call.arg(0)));
}

/*! \brief The mask of one dimension. */
std::vector<bool> Only(int dim, int rank) {
  std::vector<bool> mask(rank, false);
  mask[dim] = true;
  return mask;
}

ir::Expr DecomposeInstanceNorm(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int rank = RankOf(x);
  int channel = NormalizeAxis(ir::attrs::kInstanceNormChannelAxis.Int(call.attrs(), 1), rank);
  std::vector<int> axes = Marked(AxisMask(ir::attrs::kInstanceNormAxes(call.attrs()), rank));
  double epsilon = ir::attrs::kInstanceNormEpsilon(call.attrs()).cast<double>();
  return Affine(call, Normalized(x, axes, epsilon, w), ir::attrs::kInstanceNormScale,
                ir::attrs::kInstanceNormCenter, Only(channel, rank), w);
}

// The groups of channels become a dimension of their own. With fewer groups than devices, a part of
// a mesh axis shards the groups and another one the channels of a group.
ir::Expr DecomposeGroupNorm(const DecomposedCall& call, Writer* writer) {
  std::vector<mesh::AxisList> lists = call.sharding.operands[0].dims;
  lists.insert(lists.end(), call.sharding.factors.begin(), call.sharding.factors.end());
  Writer named = writer->OnViewOf(lists);
  Writer* w = &named;
  ir::Expr x = w->Named(call.arg(0));
  int rank = RankOf(x);
  int channel = NormalizeAxis(ir::attrs::kGroupNormChannelAxis.Int(call.attrs(), 1), rank);
  std::vector<int> dims{channel + 1};
  for (int d : Marked(AxisMask(ir::attrs::kGroupNormAxes(call.attrs()), rank)))
    dims.push_back(d > channel ? d + 1 : d);
  ir::Expr grouped =
      w->Reshape(x, SplitShape(x, channel, ir::attrs::kGroupNormNumGroups.Int(call.attrs(), 1)));
  double epsilon = ir::attrs::kGroupNormEpsilon(call.attrs()).cast<double>();
  ir::Expr normalized =
      w->Reshape(Normalized(grouped, dims, epsilon, w), ir::ShapeOf(TensorTypeOf(x)));
  return Affine(call, normalized, ir::attrs::kGroupNormScale, ir::attrs::kGroupNormCenter,
                Only(channel, rank), w);
}

/*! \brief (1 - momentum) * moving + momentum * observed. */
ir::Expr Moved(const ir::Expr& moving, const ir::Expr& observed, double momentum, Writer* w) {
  DLDataType dtype = DtypeOf(moving);
  ir::Expr kept = w->Write(ir::make::kMultiply, moving, w->Scalar(1 - momentum, dtype));
  ir::Expr share =
      w->Write(ir::make::kMultiply, w->Cast(observed, dtype), w->Scalar(momentum, dtype));
  return w->Write(ir::make::kAdd, kept, share);
}

// In training, where the statistics are those of the batch.
bool BatchNormAdds(const OpView& view) {
  return ir::attrs::kBatchNormTraining.Bool(view.call.attrs());
}

ir::Expr DecomposeBatchNorm(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int rank = RankOf(x);
  std::vector<bool> channels =
      Only(NormalizeAxis(ir::attrs::kBatchNormAxis.Int(call.attrs(), 1), rank), rank);
  std::vector<bool> others = channels;
  others.flip();
  std::vector<int> dims = Marked(others);
  ir::Expr mean = w->Reduce(ir::make::kMean, x, dims);
  ir::Expr centred = w->Write(ir::make::kSubtract, x, mean);
  ir::Expr variance = w->Reduce(ir::make::kMean, w->Write(ir::make::kSquare, centred), dims);
  double epsilon = ir::attrs::kBatchNormEpsilon(call.attrs()).cast<double>();
  ir::Expr shifted = w->Write(ir::make::kAdd, variance, w->Scalar(epsilon, DtypeOf(variance)));
  ir::Expr result = w->Write(ir::make::kDivide, centred, w->Write(ir::make::kSqrt, shifted));
  if (ir::attrs::kBatchNormScale.Bool(call.attrs()))
    result = w->Write(ir::make::kMultiply, result, Aligned(call.arg(1), channels, w));
  if (ir::attrs::kBatchNormCenter.Bool(call.attrs()))
    result = w->Write(ir::make::kAdd, result, Aligned(call.arg(2), channels, w));
  double momentum = ir::attrs::kBatchNormMomentum(call.attrs()).cast<double>();
  return ir::MakeTuple({result, Moved(call.arg(3), w->Squeeze(mean, dims), momentum, w),
                        Moved(call.arg(4), w->Squeeze(variance, dims), momentum, w)});
}

// ---- the records

const Operators kSoftmax(
    "normalization", {"others", "", "", "axis: maximum and sum of the shards are reduced"},
    {Operator("relax.nn.softmax", DecomposedAlongAxis<&ir::attrs::kSoftmaxAxis>)
         .Adds(Accumulation::kSums)
         .Decompose(DecomposeSoftmax)
         .Pad(Padding::kDecomposed),
     Operator("relax.nn.log_softmax", DecomposedAlongAxis<&ir::attrs::kSoftmaxAxis>)
         .Adds(Accumulation::kSums)
         .Decompose(DecomposeLogSoftmax)
         .Pad(Padding::kDecomposed)});
const Operators kLayerNorm(
    "normalization", {"others", "", "", "axes: means of the shards are reduced"},
    {Operator("relax.nn.layer_norm", DecomposedAlongAxis<&ir::attrs::kLayerNormAxes>)
         .Adds(Accumulation::kSums)
         .Decompose(DecomposeLayerNorm)
         .Pad(Padding::kDecomposed),
     Operator("relax.nn.rms_norm", DecomposedAlongAxis<&ir::attrs::kRMSNormAxes>)
         .Adds(Accumulation::kSums)
         .Decompose(DecomposeRmsNorm)
         .Pad(Padding::kDecomposed)});
const Operators kBatchNorm("normalization",
                           {"all; in training the channels", "", "",
                            "others in training: means of the shards are reduced"},
                           {Operator("relax.nn.batch_norm", BatchNorm)
                                .Adds(Accumulation::kSums, BatchNormAdds)
                                .Decompose(DecomposeBatchNorm)
                                .Pad(Padding::kDecomposed)});
const Operators kInstance("normalization",
                          {"channels, others", "", "", "axes: means of the shards are reduced"},
                          {Operator("relax.nn.instance_norm", InstanceNorm)
                               .Adds(Accumulation::kSums)
                               .Decompose(DecomposeInstanceNorm)
                               .Pad(Padding::kDecomposed)});
const Operators kGroupNorm("normalization",
                           {"groups, others", "", "",
                            "channels of a group, axes: means of the shards are reduced"},
                           {Operator("relax.nn.group_norm", GroupNorm)
                                .Adds(Accumulation::kSums)
                                .Decompose(DecomposeGroupNorm)
                                .Pad(Padding::kDecomposed)
                                .LocalAttrs(LocalGroups)});

}  // namespace

}  // namespace distir::ops
