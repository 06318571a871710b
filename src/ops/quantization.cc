// Quantisation, and prelu: elementwise, with scales, zero points or slopes per channel.
#include "ops/family.h"
#include "rules/factor/per_channel.h"

namespace distir::ops {

namespace {

template <const ir::AttrField* axis>
FactorRule Elementwise(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  return rules::PerChannel(view, NormalizeAxis((*axis)(view.call.attrs()).cast<int64_t>(), rank),
                           std::vector<bool>(rank, false), rules::ParallelFactor());
}

const Operators kQuantization(
    "quantization", {"all; scale and zero point along the axis"},
    {Operator("relax.dequantize", Elementwise<&ir::attrs::kQuantizeAxis>).Pad(Padding::kParallel),
     Operator("relax.quantize", Elementwise<&ir::attrs::kQuantizeAxis>).Pad(Padding::kParallel)});
const Operators kPrelu(
    "elementwise", {"all; slopes along the axis"},
    {Operator("relax.nn.prelu", Elementwise<&ir::attrs::kPReluAxis>).Pad(Padding::kParallel)});

}  // namespace

}  // namespace distir::ops
