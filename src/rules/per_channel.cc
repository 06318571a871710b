// Data of any rank with tensors of one value per channel: normalisation by channel, quantisation,
// prelu. All tensors share the channels; other dimensions are parallel, or whole where they are
// normalised together.
#include "ir/build.h"
#include "rules/axes.h"
#include "rules/registry.h"
#include "rules/special.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kBatchNormAxis("relax.attrs.BatchNormAttrs", "axis");
const ir::AttrField kBatchNormTraining("relax.attrs.BatchNormAttrs", "training");
const ir::AttrField kInstanceNormChannel("relax.attrs.InstanceNormAttrs", "channel_axis");
const ir::AttrField kInstanceNormAxes("relax.attrs.InstanceNormAttrs", "axes");
const ir::AttrField kGroupNormChannel("relax.attrs.GroupNormAttrs", "channel_axis");
const ir::AttrField kGroupNormAxes("relax.attrs.GroupNormAttrs", "axes");
const ir::AttrField kGroupNormGroups("relax.attrs.GroupNormAttrs", "num_groups");
const ir::AttrField kQuantizeAxis("relax.attrs.QuantizeAttrs", "axis");
const ir::AttrField kPreluAxis("relax.attrs.PReluAttrs", "axis");

/*!
 * \brief Operand 0 and result 0 are the data; every other tensor of rank 1 and as long as the
 * channels has one value per channel, the rest are scalars.
 * \param along Dimensions that are normalised together.
 * \param kind Of their factors: special, or needed whole.
 * \param groups Channels that must stay together lie side by side, this many groups of them.
 */
FactorRule PerChannel(const OpView& view, int channel, const std::vector<bool>& along,
                      FactorKind kind, int64_t groups = 0) {
  const ir::TensorType& data = view.operands[0];
  Sizes sizes = StaticSizes(data);
  RuleBuilder builder(view);
  auto add_channels = [&](int factor) {
    for (size_t i = 1; i < view.operands.size(); ++i) {
      if (ShardableRank(view.operands[i]) == 1 && SameSize(view.operands[i], 0, data, channel))
        builder.Operand(i, 0, factor);
    }
    for (size_t r = 1; r < view.results.size(); ++r) builder.Result(r, 0, factor);
  };
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    int64_t size = d == channel && groups > 0 ? groups : sizes[d];
    int factor = along[d] ? builder.Add({size, kind}) : builder.Parallel(size);
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
    if (d != channel) continue;
    add_channels(factor);
    if (groups == 0) continue;
    int together = builder.Add({sizes[d] < 0 ? -1 : sizes[d] / groups, kind});
    builder.Operand(0, d, together);
    builder.Result(0, d, together);
    add_channels(together);
  }
  return WithStatistics(builder.Finish());
}

FactorRule BatchNorm(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  int rank = ShardableRank(view.operands[0]);
  int channel = NormalizeAxis(kBatchNormAxis.Int(attrs, 1), rank);
  std::vector<bool> along(rank, kBatchNormTraining.Bool(attrs));
  along[channel] = false;
  return PerChannel(view, channel, along, FactorKind::kSpecial);
}

FactorRule InstanceNorm(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  int rank = ShardableRank(view.operands[0]);
  return PerChannel(view, NormalizeAxis(kInstanceNormChannel.Int(attrs, 1), rank),
                    AxisMask(kInstanceNormAxes(attrs), rank), FactorKind::kSpecial);
}

FactorRule GroupNorm(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  int rank = ShardableRank(view.operands[0]);
  int channel = NormalizeAxis(kGroupNormChannel.Int(attrs, 1), rank);
  int64_t groups = kGroupNormGroups.Int(attrs, 1);
  std::vector<bool> along = AxisMask(kGroupNormAxes(attrs), rank);
  // How many groups a worker has is only known where the number of channels is.
  bool is_known = StaticSizes(view.operands[0])[channel] >= 0;
  if (!is_known) along[channel] = true;
  return PerChannel(view, channel, along, is_known ? FactorKind::kSpecial : FactorKind::kReplicate,
                    groups);
}

ir::Node LocalGroups(const OpView& global, const OpView& local) {
  const ir::Node& attrs = global.call.attrs();
  int channel = NormalizeAxis(kGroupNormChannel.Int(attrs, 1), ShardableRank(global.operands[0]));
  int64_t whole = StaticSizes(global.operands[0])[channel];
  int64_t part = StaticSizes(local.operands[0])[channel];
  if (whole == part) return attrs;
  return ir::WithField(attrs, "num_groups", kGroupNormGroups.Int(attrs, 1) * part / whole);
}

template <const ir::AttrField* axis>
FactorRule Elementwise(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  return PerChannel(view, NormalizeAxis((*axis)(view.call.attrs()).cast<int64_t>(), rank),
                    std::vector<bool>(rank, false), FactorKind::kParallel);
}

const RuleTable kBatch("normalization",
                       {"all; in training the channels", "", "",
                        "others in training: means of the shards are reduced"},
                       {{"relax.nn.batch_norm", BatchNorm}});
const RuleTable kInstance("normalization",
                          {"channels, others", "", "", "axes: means of the shards are reduced"},
                          {{"relax.nn.instance_norm", InstanceNorm}});
const RuleTable kGroup("normalization",
                       {"groups, others", "", "",
                        "channels of a group, axes: means of the shards are reduced"},
                       {{"relax.nn.group_norm", GroupNorm, -1, LocalGroups}});
const RuleTable kQuantization("quantization", {"all; scale and zero point along the axis"},
                              {{"relax.dequantize", Elementwise<&kQuantizeAxis>},
                               {"relax.quantize", Elementwise<&kQuantizeAxis>}});
const RuleTable kPrelu("elementwise", {"all; slopes along the axis"},
                       {{"relax.nn.prelu", Elementwise<&kPreluAxis>}});

}  // namespace

}  // namespace rules
}  // namespace distir
