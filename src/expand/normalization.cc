// Softmax and norms: what they need of all elements are maxima, sums and means, whose shards are
// reduced. Means and variances take two passes, so they are as accurate as on one device.
#include <algorithm>

#include "expand/algorithm.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/axes.h"

namespace distir {
namespace expand {

namespace {

const ir::AttrField kSoftmaxAxis("relax.attrs.SoftmaxAttrs", "axis");
const ir::AttrField kLayerNormAxes("relax.attrs.LayerNormAttrs", "axes");
const ir::AttrField kLayerNormEpsilon("relax.attrs.LayerNormAttrs", "epsilon");
const ir::AttrField kRmsNormAxes("relax.attrs.RMSNormAttrs", "axes");
const ir::AttrField kRmsNormEpsilon("relax.attrs.RMSNormAttrs", "epsilon");
const ir::AttrField kBatchNormAxis("relax.attrs.BatchNormAttrs", "axis");
const ir::AttrField kBatchNormCenter("relax.attrs.BatchNormAttrs", "center");
const ir::AttrField kBatchNormEpsilon("relax.attrs.BatchNormAttrs", "epsilon");
const ir::AttrField kBatchNormMomentum("relax.attrs.BatchNormAttrs", "momentum");
const ir::AttrField kBatchNormScale("relax.attrs.BatchNormAttrs", "scale");
const ir::AttrField kInstanceNormChannel("relax.attrs.InstanceNormAttrs", "channel_axis");
const ir::AttrField kInstanceNormAxes("relax.attrs.InstanceNormAttrs", "axes");
const ir::AttrField kInstanceNormEpsilon("relax.attrs.InstanceNormAttrs", "epsilon");
const ir::AttrField kGroupNormChannel("relax.attrs.GroupNormAttrs", "channel_axis");
const ir::AttrField kGroupNormAxes("relax.attrs.GroupNormAttrs", "axes");
const ir::AttrField kGroupNormGroups("relax.attrs.GroupNormAttrs", "num_groups");
const ir::AttrField kGroupNormEpsilon("relax.attrs.GroupNormAttrs", "epsilon");

const ir::GlobalFunction kAdd("relax.op.add");
const ir::GlobalFunction kDivide("relax.op.divide");
const ir::GlobalFunction kExp("relax.op.exp");
const ir::GlobalFunction kLog("relax.op.log");
const ir::GlobalFunction kMax("relax.op.max");
const ir::GlobalFunction kMean("relax.op.mean");
const ir::GlobalFunction kMultiply("relax.op.multiply");
const ir::GlobalFunction kRsqrt("relax.op.rsqrt");
const ir::GlobalFunction kSqrt("relax.op.sqrt");
const ir::GlobalFunction kSquare("relax.op.square");
const ir::GlobalFunction kSubtract("relax.op.subtract");
const ir::GlobalFunction kSum("relax.op.sum");

constexpr DLDataType kFloat32{kDLFloat, 32, 1};

/*! \brief TVM computes norms of shorter floats in this type. */
DLDataType Wide(DLDataType dtype) { return dtype.bits < 32 ? kFloat32 : dtype; }

ir::Expr Softmax(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  std::vector<int> axis = Marked(rules::AxisMask(kSoftmaxAxis(call.attrs()), RankOf(x)));
  ir::Expr powers = w->Write(kExp, w->Write(kSubtract, x, w->Reduce(kMax, x, axis)));
  return w->Write(kDivide, powers, w->Reduce(kSum, powers, axis));
}

ir::Expr LogSoftmax(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  std::vector<int> axis = Marked(rules::AxisMask(kSoftmaxAxis(call.attrs()), RankOf(x)));
  ir::Expr shifted = w->Write(kSubtract, x, w->Reduce(kMax, x, axis));
  ir::Expr sum = w->Reduce(kSum, w->Write(kExp, shifted), axis);
  return w->Write(kSubtract, shifted, w->Write(kLog, sum));
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
  ir::Expr variance = w->Reduce(kMean, w->Write(kSquare, x), dims);
  ir::Expr shifted = w->Write(kAdd, variance, w->Scalar(epsilon, DtypeOf(variance)));
  return w->Write(kMultiply, like, w->Write(kRsqrt, shifted));
}

/*! \brief x without its mean over `dims`, scaled to variance 1, in the type of x. */
ir::Expr Normalized(const ir::Expr& x, const std::vector<int>& dims, double epsilon, Writer* w) {
  ir::Expr wide = w->Cast(x, Wide(DtypeOf(x)));
  ir::Expr centred = w->Write(kSubtract, wide, w->Reduce(kMean, wide, dims));
  return w->Cast(Scaled(centred, centred, dims, epsilon, w), DtypeOf(x));
}

ir::Expr Affine(const ir::Expr& x, const ir::Expr& gamma, const ir::Expr& beta,
                const std::vector<bool>& dims, Writer* w) {
  return w->Write(kAdd, w->Write(kMultiply, x, Aligned(gamma, dims, w)), Aligned(beta, dims, w));
}

ir::Expr LayerNorm(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  std::vector<bool> axes = rules::AxisMask(kLayerNormAxes(call.attrs()), RankOf(x));
  double epsilon = kLayerNormEpsilon(call.attrs()).cast<double>();
  return Affine(Normalized(x, Marked(axes), epsilon, w), call.arg(1), call.arg(2), axes, w);
}

ir::Expr RmsNorm(const SpecialCall& call, Writer* w) {
  std::vector<bool> axes = rules::AxisMask(kRmsNormAxes(call.attrs()), RankOf(call.arg(0)));
  double epsilon = kRmsNormEpsilon(call.attrs()).cast<double>();
  ir::Expr x = w->Cast(call.arg(0), kFloat32);
  ir::Expr weight = Aligned(w->Cast(call.arg(1), kFloat32), axes, w);
  ir::Expr scaled = Scaled(x, x, Marked(axes), epsilon, w);
  return w->Cast(w->Write(kMultiply, scaled, weight), DtypeOf(call.arg(0)));
}

/*! \brief The mask of one dimension. */
std::vector<bool> Only(int dim, int rank) {
  std::vector<bool> mask(rank, false);
  mask[dim] = true;
  return mask;
}

ir::Expr InstanceNorm(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int rank = RankOf(x);
  int channel = rules::NormalizeAxis(kInstanceNormChannel.Int(call.attrs(), 1), rank);
  std::vector<int> axes = Marked(rules::AxisMask(kInstanceNormAxes(call.attrs()), rank));
  double epsilon = kInstanceNormEpsilon(call.attrs()).cast<double>();
  return Affine(Normalized(x, axes, epsilon, w), call.arg(1), call.arg(2), Only(channel, rank), w);
}

// The groups of channels become a dimension of their own.
ir::Expr GroupNorm(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int rank = RankOf(x);
  int channel = rules::NormalizeAxis(kGroupNormChannel.Int(call.attrs(), 1), rank);
  std::vector<int> dims{channel + 1};
  for (int d : Marked(rules::AxisMask(kGroupNormAxes(call.attrs()), rank)))
    dims.push_back(d > channel ? d + 1 : d);
  ir::Expr grouped = w->Reshape(x, SplitShape(x, channel, kGroupNormGroups.Int(call.attrs(), 1)));
  double epsilon = kGroupNormEpsilon(call.attrs()).cast<double>();
  ir::Expr normalized =
      w->Reshape(Normalized(grouped, dims, epsilon, w), ir::ShapeOf(TensorTypeOf(x)));
  return Affine(normalized, call.arg(1), call.arg(2), Only(channel, rank), w);
}

/*! \brief (1 - momentum) * moving + momentum * observed. */
ir::Expr Moved(const ir::Expr& moving, const ir::Expr& observed, double momentum, Writer* w) {
  DLDataType dtype = DtypeOf(moving);
  ir::Expr kept = w->Write(kMultiply, moving, w->Scalar(1 - momentum, dtype));
  ir::Expr share = w->Write(kMultiply, w->Cast(observed, dtype), w->Scalar(momentum, dtype));
  return w->Write(kAdd, kept, share);
}

// In training, where the statistics are those of the batch.
ir::Expr BatchNorm(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int rank = RankOf(x);
  std::vector<bool> channels =
      Only(rules::NormalizeAxis(kBatchNormAxis.Int(call.attrs(), 1), rank), rank);
  std::vector<bool> others = channels;
  others.flip();
  std::vector<int> dims = Marked(others);
  ir::Expr mean = w->Reduce(kMean, x, dims);
  ir::Expr centred = w->Write(kSubtract, x, mean);
  ir::Expr variance = w->Reduce(kMean, w->Write(kSquare, centred), dims);
  double epsilon = kBatchNormEpsilon(call.attrs()).cast<double>();
  ir::Expr shifted = w->Write(kAdd, variance, w->Scalar(epsilon, DtypeOf(variance)));
  ir::Expr result = w->Write(kDivide, centred, w->Write(kSqrt, shifted));
  if (kBatchNormScale.Bool(call.attrs()))
    result = w->Write(kMultiply, result, Aligned(call.arg(1), channels, w));
  if (kBatchNormCenter.Bool(call.attrs()))
    result = w->Write(kAdd, result, Aligned(call.arg(2), channels, w));
  double momentum = kBatchNormMomentum(call.attrs()).cast<double>();
  return ir::MakeTuple({result, Moved(call.arg(3), w->Squeeze(mean, dims), momentum, w),
                        Moved(call.arg(4), w->Squeeze(variance, dims), momentum, w)});
}

const AlgorithmTable kNormalizations({{"relax.nn.batch_norm", BatchNorm},
                                      {"relax.nn.softmax", Softmax},
                                      {"relax.nn.log_softmax", LogSoftmax},
                                      {"relax.nn.layer_norm", LayerNorm},
                                      {"relax.nn.rms_norm", RmsNorm},
                                      {"relax.nn.instance_norm", InstanceNorm},
                                      {"relax.nn.group_norm", GroupNorm}});

}  // namespace

}  // namespace expand
}  // namespace distir
