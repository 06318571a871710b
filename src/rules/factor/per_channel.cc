// Builds rules of data with one value per channel.
#include "rules/factor/per_channel.h"

#include "rules/factor/decomposed_factor.h"

namespace distir::rules {

FactorRule PerChannel(const OpView& view, int channel, const std::vector<bool>& along,
                      const FactorKind& kind, int64_t groups) {
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

}  // namespace distir::rules
