#include "rules/windows.h"

#include <algorithm>
#include <map>

#include "rules/conv_fields.h"
#include "rules/layout.h"

namespace distir {
namespace rules {

namespace {

struct PoolFields {
  explicit PoolFields(const char* key)
      : pool_size(key, "pool_size"),
        strides(key, "strides"),
        padding(key, "padding"),
        dilation(key, "dilation"),
        count_include_pad(key, "count_include_pad"),
        layout(key, "layout"),
        out_layout(key, "out_layout") {}
  ir::AttrField pool_size, strides, padding, dilation, count_include_pad, layout, out_layout;
};

const PoolFields kPool1d("relax.attrs.Pool1DAttrs");
const PoolFields kPool2d("relax.attrs.Pool2DAttrs");
const PoolFields kPool3d("relax.attrs.Pool3DAttrs");

using Integers = ffi::Array<int64_t>;

/*! \brief Spatial dimensions in both layouts; nullopt where the layouts do not fit the tensors. */
std::optional<Windows> Spatial(const OpView& view, WindowKind kind, const std::string& data,
                               const std::string& out) {
  Sizes from = StaticSizes(view.operands[0]), to = StaticSizes(view.results[0]);
  if (from.size() != data.size() || to.size() != out.size()) return std::nullopt;
  Windows windows{kind, DimOf(data, 'N'), DimOf(out, 'N'), {}, false};
  if (windows.data_batch < 0 || windows.result_batch < 0) return std::nullopt;
  for (char letter : kSpatialLetters) {
    const int data_dim = DimOf(data, letter), result_dim = DimOf(out, letter);
    if (data_dim < 0 || result_dim < 0) continue;
    windows.dims.push_back(
        {data_dim, result_dim, from[data_dim], to[result_dim], 1, 1, 1, 0, 0, 0});
  }
  return windows;
}

/*! \brief Reads what all operators with windows state; false where a list has another length. */
template <typename Fields>
bool ReadLists(const Fields& fields, const ir::Node& attrs, Windows* windows) {
  const Integers strides = fields.strides(attrs).template cast<Integers>();
  const Integers padding = fields.padding(attrs).template cast<Integers>();
  const Integers dilation = fields.dilation(attrs).template cast<Integers>();
  const size_t rank = windows->dims.size();
  if (strides.size() != rank || dilation.size() != rank || padding.size() != 2 * rank) return false;
  for (size_t i = 0; i < rank; ++i) {
    WindowDim& dim = windows->dims[i];
    dim.stride = strides[i];
    dim.dilation = dilation[i];
    dim.before = padding[i];
    dim.after = padding[rank + i];
  }
  return true;
}

template <typename Fields>
std::optional<Windows> OfConvolution(const OpView& view, const Fields& fields, WindowKind kind) {
  const ir::Node& attrs = view.call.attrs();
  const std::string kernel = LayoutLetters(fields.kernel_layout.Text(attrs));
  const std::string data = LayoutLetters(fields.data_layout.Text(attrs));
  const Sizes sizes = StaticSizes(view.operands[1]);
  auto windows = Spatial(view, kind, data, LayoutLetters(fields.out_layout.Text(attrs)));
  if (!windows || sizes.size() != kernel.size() || !ReadLists(fields, attrs, &*windows))
    return std::nullopt;
  for (WindowDim& dim : windows->dims) {
    const int of_kernel = DimOf(kernel, data[dim.data_dim]);
    if (of_kernel < 0 || sizes[of_kernel] < 0) return std::nullopt;
    dim.kernel = sizes[of_kernel];
  }
  return windows;
}

template <const ConvFields* fields>
std::optional<Windows> Convolution(const OpView& view) {
  return OfConvolution(view, *fields, WindowKind::kConvolution);
}

template <const TransposedFields* fields>
std::optional<Windows> Transposed(const OpView& view) {
  auto windows = OfConvolution(view, *fields, WindowKind::kTransposed);
  if (!windows) return windows;
  auto more = fields->output_padding(view.call.attrs()).template cast<Integers>();
  if (more.size() != windows->dims.size()) return std::nullopt;
  for (size_t i = 0; i < more.size(); ++i) windows->dims[i].output_padding = more[i];
  return windows;
}

template <const PoolFields* fields, WindowKind kind>
std::optional<Windows> Pool(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  auto windows = Spatial(view, kind, LayoutLetters(fields->layout.Text(attrs)),
                         LayoutLetters(fields->out_layout.Text(attrs)));
  if (!windows || !ReadLists(*fields, attrs, &*windows)) return std::nullopt;
  auto pool_size = fields->pool_size(attrs).template cast<Integers>();
  if (pool_size.size() != windows->dims.size()) return std::nullopt;
  for (size_t i = 0; i < pool_size.size(); ++i) windows->dims[i].kernel = pool_size[i];
  windows->counts_padding = fields->count_include_pad.Bool(attrs);
  return windows;
}

using Reader = std::optional<Windows> (*)(const OpView&);

const std::map<std::string, Reader>& Readers() {
  static const std::map<std::string, Reader> readers = {
      {"relax.nn.avg_pool1d", Pool<&kPool1d, WindowKind::kMean>},
      {"relax.nn.avg_pool2d", Pool<&kPool2d, WindowKind::kMean>},
      {"relax.nn.avg_pool3d", Pool<&kPool3d, WindowKind::kMean>},
      {"relax.nn.conv1d", Convolution<&kConv1d>},
      {"relax.nn.conv1d_transpose", Transposed<&kTransposed1d>},
      {"relax.nn.conv2d", Convolution<&kConv2d>},
      {"relax.nn.conv2d_transpose", Transposed<&kTransposed2d>},
      {"relax.nn.conv3d", Convolution<&kConv3d>},
      {"relax.nn.conv3d_transpose", Transposed<&kTransposed3d>},
      {"relax.nn.max_pool1d", Pool<&kPool1d, WindowKind::kMaximum>},
      {"relax.nn.max_pool2d", Pool<&kPool2d, WindowKind::kMaximum>},
      {"relax.nn.max_pool3d", Pool<&kPool3d, WindowKind::kMaximum>},
  };
  return readers;
}

/*! \brief Whether blocks of the result look at blocks of the data and nothing else. */
bool IsBlockwise(const WindowDim& dim, WindowKind kind) {
  return kind != WindowKind::kTransposed && dim.before == 0 && dim.after == 0 &&
         dim.extent() <= dim.stride && dim.data_size == dim.result_size * dim.stride;
}

/*! \brief The most shards that there may be; 1 where there can be none. */
int64_t MostShards(const WindowDim& dim, const Windows& windows, DLDataType dtype) {
  if (dim.data_size <= 0 || dim.result_size <= 0) return 1;
  const bool is_float = dtype.code == kDLFloat || dtype.code == kDLBfloat;
  switch (windows.kind) {
    case WindowKind::kTransposed: {
      // Every shard's first element has to stand at the same place between two strides.
      const int64_t gap = dim.extent() - 1 - dim.before;
      const int64_t past = ((gap % dim.stride) + dim.stride) % dim.stride;
      if (dim.dilation != 1 || past > dim.extent() - 1) return 1;
      break;
    }
    case WindowKind::kMean:
    case WindowKind::kMaximum:
      // A mean of integers is rounded once only. A window of nothing but padding has no mean.
      if (windows.kind == WindowKind::kMean && !is_float) return 1;
      if (dim.extent() <= dim.before || dim.extent() - dim.before > dim.data_size ||
          (dim.result_size - 1) * dim.stride - dim.before >= dim.data_size)
        return 1;
      break;
    case WindowKind::kConvolution:
      break;
  }
  return std::min(dim.data_size, dim.result_size);
}

/*! \brief How many elements of the data a shard gets from others. */
int64_t Halo(const WindowDim& dim, WindowKind kind) {
  if (kind == WindowKind::kTransposed) return (dim.extent() - 1) / dim.stride;
  return std::max<int64_t>(0, dim.extent() - dim.stride);
}

}  // namespace

std::optional<Windows> WindowsOf(const OpView& view) {
  if (!ir::Op::Is(view.call.op())) return std::nullopt;
  auto found = Readers().find(ir::Op::Cast(view.call.op()).name());
  return found == Readers().end() ? std::nullopt : found->second(view);
}

void AddWindowFactors(const OpView& view, RuleBuilder* builder) {
  const std::optional<Windows> windows = WindowsOf(view);
  if (!windows) return;
  const DLDataType dtype = view.operands[0].dtype().dtype();
  for (const WindowDim& dim : windows->dims) {
    const int64_t size = MostShards(dim, *windows, dtype);
    // An odd number of blocks does not divide into the usual numbers of shards.
    const bool is_taken_apart = size > 1 && dim.stride > 1 && dim.result_size % 2 != 0;
    if (IsBlockwise(dim, windows->kind) && !is_taken_apart) {
      const int factor = builder->Parallel(dim.result_size);
      builder->Operand(0, dim.data_dim, factor);
      if (dim.stride > 1) builder->Operand(0, dim.data_dim, builder->Replicate(dim.stride));
      builder->Result(0, dim.result_dim, factor);
      continue;
    }
    if (size <= 1) continue;
    const double halo = static_cast<double>(Halo(dim, windows->kind));
    const int factor =
        builder->Special(size, Exchanged::kNeighbours, halo / static_cast<double>(dim.data_size));
    builder->Operand(0, dim.data_dim, factor);
    builder->Result(0, dim.result_dim, factor);
  }
}

void AddGradientFactors(const OpView& view, RuleBuilder* builder) {
  const OpView pooling{view.call, {view.operands[1]}, {view.operands[0]}};
  const std::optional<Windows> windows = Pool<&kPool2d, WindowKind::kMean>(pooling);
  if (!windows) return;
  for (const WindowDim& dim : windows->dims) {
    if (!IsBlockwise(dim, windows->kind)) continue;
    const int factor = builder->Parallel(dim.result_size);
    const int within = builder->Replicate(dim.stride);
    builder->Operand(0, dim.result_dim, factor);
    builder->Operand(1, dim.data_dim, factor);
    builder->Operand(1, dim.data_dim, within);
    builder->Result(0, dim.data_dim, factor);
    builder->Result(0, dim.data_dim, within);
  }
}

}  // namespace rules
}  // namespace distir
