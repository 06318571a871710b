// Pooling: batch and channels are parallel, spatial dimensions follow the rules
// of windows (ops/windows.h).
#include <optional>
#include <string>

#include "ir/build.h"
#include "ops/image_layout.h"
#include "ops/windows.h"

namespace distir::ops {

namespace {

using ir::attrs::AdaptivePoolFields;
using ir::attrs::PoolFields;
using rules::DimOf;
using rules::kSpatialLetters;
using rules::LayoutLetters;

template <const PoolFields* fields, WindowKind kind>
std::optional<Windows> WindowsOf(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  auto windows = SpatialDims(view, kind, LayoutLetters(fields->layout.Text(attrs)),
                             LayoutLetters(fields->out_layout.Text(attrs)));
  if (!windows ||
      !ReadWindowLists(fields->strides, fields->padding, fields->dilation, attrs, &*windows))
    return std::nullopt;
  auto pool_size = fields->pool_size(attrs).template cast<ffi::Array<int64_t>>();
  if (pool_size.size() != windows->dims.size()) return std::nullopt;
  for (size_t i = 0; i < pool_size.size(); ++i) windows->dims[i].kernel = pool_size[i];
  windows->counts_padding = fields->count_include_pad.Bool(attrs);
  return windows;
}

template <const PoolFields* fields, WindowKind kind>
FactorRule Pool(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  RuleBuilder builder(view);
  AddBatchAndChannels(view, LayoutLetters(fields->layout.Text(attrs)),
                      LayoutLetters(fields->out_layout.Text(attrs)), &builder);
  if (auto windows = WindowsOf<fields, kind>(view)) AddWindowFactors(view, *windows, &builder);
  return builder.Finish();
}

/*! \brief Parallel factors of the gradient of a pooling: the first operand is the gradient of the
 * pooling's result, the second one and the result are as its data. */
void AddGradientFactors(const OpView& view, RuleBuilder* builder) {
  const OpView pooling{view.call, {view.operands[1]}, {view.operands[0]}};
  const std::optional<Windows> windows = WindowsOf<&ir::attrs::kPool2d, WindowKind::kMean>(pooling);
  if (!windows) return;
  for (const WindowDim& dim : windows->dims) {
    if (!IsBlockwise(dim, windows->kind)) continue;
    const int factor = builder->Parallel(dim.result_size);
    const int within = builder->NeedsReplication(dim.stride);
    builder->Operand(0, dim.result_dim, factor);
    builder->Operand(1, dim.data_dim, factor);
    builder->Operand(1, dim.data_dim, within);
    builder->Result(0, dim.data_dim, factor);
    builder->Result(0, dim.data_dim, within);
  }
}

// The gradient has the layout of the data, whatever out_layout says.
FactorRule PoolBackward(const OpView& view) {
  std::string layout = LayoutLetters(ir::attrs::kPool2d.layout.Text(view.call.attrs()));
  RuleBuilder builder(view);
  AddBatchAndChannels(view, layout, layout, &builder);
  AddGradientFactors(view, &builder);
  return builder.Finish();
}

// Windows of one size, one behind the other, where the sizes divide. Shards of windows have means
// of their own, but a mean of integers is rounded once only.
template <const AdaptivePoolFields* fields>
FactorRule Adaptive(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  const std::string layout = LayoutLetters(fields->layout.Text(attrs));
  const std::string out_layout = LayoutLetters(fields->out_layout.Text(attrs));
  RuleBuilder builder(view);
  AddBatchAndChannels(view, layout, out_layout, &builder);
  Sizes from = StaticSizes(view.operands[0]), to = StaticSizes(view.results[0]);
  for (char letter : kSpatialLetters) {
    const int dim = DimOf(layout, letter), out_dim = DimOf(out_layout, letter);
    if (dim < 0 || out_dim < 0 || from[dim] <= 0 || to[out_dim] <= 0 ||
        from[dim] % to[out_dim] != 0)
      continue;
    const int64_t window = from[dim] / to[out_dim];
    if (to[out_dim] > 1) {
      const int factor = builder.Parallel(to[out_dim]);
      builder.Operand(0, dim, factor);
      builder.Result(0, out_dim, factor);
    }
    if (window == 1) continue;
    builder.Operand(0, dim,
                    IsFloat(view.operands[0]) ? builder.Reduce(window, mesh::Reduction::kMean)
                                              : builder.NeedsReplication(window));
  }
  return builder.Finish();
}

/*! \brief The spatial sizes of a result, in the order that attributes and arguments have. */
template <const AdaptivePoolFields* fields>
ir::Node LocalOutputSize(const OpView& global, const OpView& local) {
  const ir::Node& attrs = global.call.attrs();
  const std::string layout = LayoutLetters(fields->out_layout.Text(attrs));
  Sizes sizes = StaticSizes(local.results[0]);
  ffi::Array<int64_t> output_size;
  for (char letter : kSpatialLetters) {
    const int dim = DimOf(layout, letter);
    if (dim < 0) continue;
    if (sizes[dim] < 0) return attrs;  // not sharded
    output_size.push_back(sizes[dim]);
  }
  return ir::WithField(attrs, "output_size", output_size);
}

template <const PoolFields* fields, WindowKind kind>
ir::Expr DecomposePool(const DecomposedCall& call, Writer* w) {
  return DecomposeWindows(call, *WindowsOf<fields, kind>(ViewCall(call.call, call.result())), w);
}

const Operators kAdaptive(
    "pooling",
    {"batch, channels, windows one behind the other", "pixels of such a window: mean",
     "spatial dimensions that the result's size does not divide, or that have fewer windows than "
     "shards"},
    {Operator("relax.nn.adaptive_avg_pool1d", Adaptive<&ir::attrs::kAdaptivePool1d>)
         .Adds(Accumulation::kSums)
         .Pad(Padding::kParallel)
         .LocalAttrs(LocalOutputSize<&ir::attrs::kAdaptivePool1d>),
     Operator("relax.nn.adaptive_avg_pool2d", Adaptive<&ir::attrs::kAdaptivePool2d>)
         .Adds(Accumulation::kSums)
         .Pad(Padding::kParallel)
         .LocalAttrs(LocalOutputSize<&ir::attrs::kAdaptivePool2d>),
     Operator("relax.nn.adaptive_avg_pool3d", Adaptive<&ir::attrs::kAdaptivePool3d>)
         .Adds(Accumulation::kSums)
         .Pad(Padding::kParallel)
         .LocalAttrs(LocalOutputSize<&ir::attrs::kAdaptivePool3d>)});
const Operators kPoolBackward("pooling",
                              {"batch, channels, windows one behind the other", "",
                               "spatial dimensions whose windows overlap or are padded"},
                              {Operator("relax.grad.avg_pool2d_backward", PoolBackward)
                                   .Adds(Accumulation::kSums)
                                   .Pad(Padding::kParallel),
                               Operator("relax.grad.max_pool2d_backward", PoolBackward)
                                   .Adds(Accumulation::kSums)
                                   .Pad(Padding::kParallel)});
const Operators kWindows(
    "pooling",
    {"batch, channels", "",
     "spatial dimensions of one element or unknown extent, or with fewer windows than shards",
     "spatial dimensions: every shard gets what its windows look at"},
    {Operator("relax.nn.avg_pool1d", Pool<&ir::attrs::kPool1d, WindowKind::kMean>)
         .Adds(Accumulation::kSums)
         .Decompose(DecomposePool<&ir::attrs::kPool1d, WindowKind::kMean>)
         .Pad(Padding::kDecomposed),
     Operator("relax.nn.avg_pool2d", Pool<&ir::attrs::kPool2d, WindowKind::kMean>)
         .Adds(Accumulation::kSums)
         .Decompose(DecomposePool<&ir::attrs::kPool2d, WindowKind::kMean>)
         .Pad(Padding::kDecomposed),
     Operator("relax.nn.avg_pool3d", Pool<&ir::attrs::kPool3d, WindowKind::kMean>)
         .Adds(Accumulation::kSums)
         .Decompose(DecomposePool<&ir::attrs::kPool3d, WindowKind::kMean>)
         .Pad(Padding::kDecomposed),
     Operator("relax.nn.max_pool1d", Pool<&ir::attrs::kPool1d, WindowKind::kMaximum>)
         .Decompose(DecomposePool<&ir::attrs::kPool1d, WindowKind::kMaximum>)
         .Pad(Padding::kDecomposed),
     Operator("relax.nn.max_pool2d", Pool<&ir::attrs::kPool2d, WindowKind::kMaximum>)
         .Decompose(DecomposePool<&ir::attrs::kPool2d, WindowKind::kMaximum>)
         .Pad(Padding::kDecomposed),
     Operator("relax.nn.max_pool3d", Pool<&ir::attrs::kPool3d, WindowKind::kMaximum>)
         .Decompose(DecomposePool<&ir::attrs::kPool3d, WindowKind::kMaximum>)
         .Pad(Padding::kDecomposed)});

}  // namespace

}  // namespace distir::ops
