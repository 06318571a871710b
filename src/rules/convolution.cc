// Convolutions: the batch and the output channels are parallel, the input channels a sum. With
// groups, a channel dimension is (group, channel of the group): data [n][g c], result [n][g o]. A
// convolution's weight is [g o][c], that of a transposed one [g c][o]. Spatial dimensions are in
// rules/windows.h.
#include <algorithm>

#include "ir/build.h"
#include "rules/conv_fields.h"
#include "rules/layout.h"
#include "rules/registry.h"
#include "rules/windows.h"

namespace distir {
namespace rules {

namespace {

FactorRule Conv(const OpView& view, const ConvFields& fields, bool is_transposed) {
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
  AddWindowFactors(view, &builder);
  if (IsBlocked(data) || IsBlocked(kernel) || IsBlocked(out)) return builder.Finish();

  int data_dim = DimOf(data, 'C'), out_dim = DimOf(out, 'C');
  int kernel_in = DimOf(kernel, 'I'), kernel_out = DimOf(kernel, 'O');
  int grouped = is_transposed ? kernel_in : kernel_out;  // the kernel's dimension over all groups
  int64_t groups = fields.groups.Int(attrs, 1);
  int64_t in_size = kernel_sizes[kernel_in], out_size = kernel_sizes[kernel_out];
  if (groups > 1) {
    // How many groups a worker has is only known where the channels are.
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

const RuleTable kTable(
    "convolution",
    {"batch, output channels, groups", "input channels: sum",
     "spatial dimensions of one element or unknown extent; channels of blocked layouts",
     "spatial dimensions: every shard gets what its windows look at"},
    {{"relax.nn.conv1d", ConvRule<&kConv1d, false>, -1, LocalGroups<&kConv1d>},
     {"relax.nn.conv2d", ConvRule<&kConv2d, false>, -1, LocalGroups<&kConv2d>},
     {"relax.nn.conv3d", ConvRule<&kConv3d, false>, -1, LocalGroups<&kConv3d>},
     {"relax.nn.conv1d_transpose", ConvRule<&kTransposed1d, true>, -1, LocalGroups<&kTransposed1d>},
     {"relax.nn.conv2d_transpose", ConvRule<&kTransposed2d, true>, -1, LocalGroups<&kTransposed2d>},
     {"relax.nn.conv3d_transpose", ConvRule<&kTransposed3d, true>, -1,
      LocalGroups<&kTransposed3d>}});

}  // namespace

}  // namespace rules
}  // namespace distir
