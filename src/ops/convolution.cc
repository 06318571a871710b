// Convolutions: the batch and the output channels are parallel, the input channels a sum. With
// groups, a channel dimension is (group, channel of the group): data [n][g c], result [n][g o]. A
// convolution's weight is [g o][c], that of a transposed one [g c][o]. Spatial dimensions are in
// ops/windows.h.
#include <algorithm>

#include "ir/build.h"
#include "ops/windows.h"
#include "rules/factor/layout.h"

namespace distir::ops {

namespace {

using ir::attrs::ConvFields;
using ir::attrs::TransposedFields;
using rules::DimOf;
using rules::IsBlocked;
using rules::LayoutLetters;

std::optional<Windows> WindowsOf(const OpView& view, const ConvFields& fields, WindowKind kind) {
  const ir::Node& attrs = view.call.attrs();
  const std::string kernel = LayoutLetters(fields.kernel_layout.Text(attrs));
  const std::string data = LayoutLetters(fields.data_layout.Text(attrs));
  const Sizes sizes = StaticSizes(view.operands[1]);
  auto windows = SpatialDims(view, kind, data, LayoutLetters(fields.out_layout.Text(attrs)));
  if (!windows || sizes.size() != kernel.size() ||
      !ReadWindowLists(fields.strides, fields.padding, fields.dilation, attrs, &*windows))
    return std::nullopt;
  for (WindowDim& dim : windows->dims) {
    const int of_kernel = DimOf(kernel, data[dim.data_dim]);
    if (of_kernel < 0 || sizes[of_kernel] < 0) return std::nullopt;
    dim.kernel = sizes[of_kernel];
    dim.kernel_dim = of_kernel;
  }
  return windows;
}

/*! \brief True if every window has more than half of what all windows look at. */
bool IsContracted(const WindowDim& dim) {
  return dim.kernel > 1 && dim.data_size > 0 && dim.result_size > 0 &&
         2 * (dim.result_size - 1) * dim.stride < dim.extent();
}

std::optional<Windows> WindowsOf(const OpView& view, const ConvFields& fields) {
  auto windows = WindowsOf(view, fields, WindowKind::kConvolution);
  const ir::Node& attrs = view.call.attrs();
  const std::string data = LayoutLetters(fields.data_layout.Text(attrs));
  const std::string kernel = LayoutLetters(fields.kernel_layout.Text(attrs));
  const std::string out = LayoutLetters(fields.out_layout.Text(attrs));
  if (!windows || IsBlocked(data) || IsBlocked(kernel) || IsBlocked(out)) return windows;
  windows->data_channel = DimOf(data, 'C');
  windows->kernel_out = DimOf(kernel, 'O');
  windows->result_channel = DimOf(out, 'C');
  windows->groups = fields.groups.Int(attrs, 1);
  for (WindowDim& dim : windows->dims) dim.contracted = IsContracted(dim);
  return windows;
}

std::optional<Windows> WindowsOf(const OpView& view, const TransposedFields& fields) {
  auto windows = WindowsOf(view, fields, WindowKind::kTransposed);
  if (!windows) return windows;
  auto more = fields.output_padding(view.call.attrs()).cast<ffi::Array<int64_t>>();
  if (more.size() != windows->dims.size()) return std::nullopt;
  for (size_t i = 0; i < more.size(); ++i) windows->dims[i].output_padding = more[i];
  return windows;
}

template <typename Fields>
FactorRule Conv(const OpView& view, const Fields& fields, bool is_transposed) {
  const ir::Node& attrs = view.call.attrs();
  std::string data = LayoutLetters(fields.data_layout.Text(attrs));
  std::string kernel = LayoutLetters(fields.kernel_layout.Text(attrs));
  std::string out = LayoutLetters(fields.out_layout.Text(attrs));
  Sizes data_sizes = StaticSizes(view.operands[0]);
  Sizes kernel_sizes = StaticSizes(view.operands[1]);
  if (data_sizes.size() != data.size() || kernel_sizes.size() != kernel.size())
    return ReplicateAll(view);
  RuleBuilder builder(view);
  int batch = builder.Parallel(data_sizes[DimOf(data, 'N')]);
  builder.Operand(0, DimOf(data, 'N'), batch);
  builder.Result(0, DimOf(out, 'N'), batch);
  if (auto windows = WindowsOf(view, fields)) AddWindowFactors(view, *windows, &builder);
  if (IsBlocked(data) || IsBlocked(kernel) || IsBlocked(out)) return builder.Finish();

  int data_dim = DimOf(data, 'C'), out_dim = DimOf(out, 'C');
  int kernel_in = DimOf(kernel, 'I'), kernel_out = DimOf(kernel, 'O');
  int grouped = is_transposed ? kernel_in : kernel_out;  // the kernel's dimension over all groups
  int64_t groups = fields.groups.Int(attrs, 1);
  int64_t in_size = kernel_sizes[kernel_in], out_size = kernel_sizes[kernel_out];
  if (groups > 1) {
    // The number of groups on a worker is only known with the number of channels.
    if (kernel_sizes[grouped] < 0 || data_sizes[data_dim] < 0) return builder.Finish();
    (is_transposed ? in_size : out_size) /= groups;
    int group = builder.Parallel(groups);
    builder.Operand(0, data_dim, group);
    builder.Operand(1, grouped, group);
    builder.Result(0, out_dim, group);
  }
  int in = builder.Reduce(in_size, mesh::Reduction::kSum);
  int channel = builder.Parallel(out_size);
  builder.Operand(0, data_dim, in);
  builder.Operand(1, kernel_in, in);
  builder.Operand(1, kernel_out, channel);
  builder.Result(0, out_dim, channel);
  return builder.Finish();
}

template <const auto* fields, bool is_transposed>
FactorRule ConvRule(const OpView& view) {
  return Conv(view, *fields, is_transposed);
}

template <const auto* fields>
ir::Expr DecomposeConv(const DecomposedCall& call, Writer* w) {
  return DecomposeWindows(call, *WindowsOf(ViewCall(call.call, call.result()), *fields), w);
}

// A worker has its share of the groups, at least a part of one.
template <const auto* fields>
ir::Node LocalGroups(const OpView& global, const OpView& local) {
  const ir::Node& attrs = global.call.attrs();
  int64_t groups = fields->groups.Int(attrs, 1);
  if (groups == 1) return attrs;
  int channels = DimOf(LayoutLetters(fields->data_layout.Text(attrs)), 'C');
  int64_t whole = StaticSizes(global.operands[0])[channels];
  int64_t part = StaticSizes(local.operands[0])[channels];
  if (whole == part) return attrs;
  return ir::WithField(attrs, "groups", std::max<int64_t>(1, groups * part / whole));
}

const Operators kConvolutions(
    "convolution",
    {"batch, output channels, groups",
     "input channels, and spatial dimensions of windows that have nearly all of them: sum",
     "spatial dimensions of one element or unknown extent, or with fewer windows than shards; "
     "windows of nearly all of a dimension whose kernel the shards do not divide (zeros behind it "
     "would make NaN of infinities); channels of blocked layouts",
     "spatial dimensions: every shard gets what its windows look at"},
    {Operator("relax.nn.conv1d", ConvRule<&ir::attrs::kConv1d, false>)
         .Adds(Accumulation::kProducts)
         .Decompose(DecomposeConv<&ir::attrs::kConv1d>)
         .Pad(Padding::kDecomposed)
         .LocalAttrs(LocalGroups<&ir::attrs::kConv1d>),
     Operator("relax.nn.conv2d", ConvRule<&ir::attrs::kConv2d, false>)
         .Adds(Accumulation::kProducts)
         .Decompose(DecomposeConv<&ir::attrs::kConv2d>)
         .Pad(Padding::kDecomposed)
         .LocalAttrs(LocalGroups<&ir::attrs::kConv2d>),
     Operator("relax.nn.conv3d", ConvRule<&ir::attrs::kConv3d, false>)
         .Adds(Accumulation::kProducts)
         .Decompose(DecomposeConv<&ir::attrs::kConv3d>)
         .Pad(Padding::kDecomposed)
         .LocalAttrs(LocalGroups<&ir::attrs::kConv3d>)});

const Operators kTransposedConvolutions(
    "convolution",
    {"batch, output channels, groups", "input channels: sum",
     "spatial dimensions of one element or unknown extent, or with fewer windows than shards; "
     "channels of blocked layouts",
     "spatial dimensions: every shard gets what its windows look at; where shards do not divide, "
     "rows of the result move to their shards"},
    {Operator("relax.nn.conv1d_transpose", ConvRule<&ir::attrs::kTransposed1d, true>)
         .Adds(Accumulation::kProducts)
         .Decompose(DecomposeConv<&ir::attrs::kTransposed1d>)
         .Pad(Padding::kDecomposed)
         .LocalAttrs(LocalGroups<&ir::attrs::kTransposed1d>),
     Operator("relax.nn.conv2d_transpose", ConvRule<&ir::attrs::kTransposed2d, true>)
         .Adds(Accumulation::kProducts)
         .Decompose(DecomposeConv<&ir::attrs::kTransposed2d>)
         .Pad(Padding::kDecomposed)
         .LocalAttrs(LocalGroups<&ir::attrs::kTransposed2d>),
     Operator("relax.nn.conv3d_transpose", ConvRule<&ir::attrs::kTransposed3d, true>)
         .Adds(Accumulation::kProducts)
         .Decompose(DecomposeConv<&ir::attrs::kTransposed3d>)
         .Pad(Padding::kDecomposed)
         .LocalAttrs(LocalGroups<&ir::attrs::kTransposed3d>)});

}  // namespace

}  // namespace distir::ops
