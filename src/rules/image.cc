// Pooling and sampling of images: batch and channels are parallel. The spatial dimensions of
// pooling are in rules/windows.h, those of resizing in rules/resizing.h; of others the data is kept
// whole along them.
#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/layout.h"
#include "rules/registry.h"
#include "rules/resizing.h"
#include "rules/windows.h"

namespace distir {
namespace rules {

namespace {

struct ImageFields {
  explicit ImageFields(const char* type_key) : layout(type_key, "layout") {}
  ir::AttrField layout;
};

/*! \brief Of operators that can change the layout. */
struct PoolFields : ImageFields {
  explicit PoolFields(const char* type_key)
      : ImageFields(type_key), out_layout(type_key, "out_layout") {}
  ir::AttrField out_layout;
};

const PoolFields kPool1d("relax.attrs.Pool1DAttrs");
const PoolFields kPool2d("relax.attrs.Pool2DAttrs");
const PoolFields kPool3d("relax.attrs.Pool3DAttrs");
const PoolFields kAdaptive1d("relax.attrs.AdaptivePool1DAttrs");
const PoolFields kAdaptive2d("relax.attrs.AdaptivePool2DAttrs");
const PoolFields kAdaptive3d("relax.attrs.AdaptivePool3DAttrs");
const ImageFields kResize2d("relax.attrs.Resize2DAttrs");
const ImageFields kResize3d("relax.attrs.Resize3DAttrs");
const ImageFields kGridSample("relax.attrs.GridSampleAttrs");
const ImageFields kRoiAlign("relax.attrs.ROIAlignAttrs");
const ImageFields kRoiPool("relax.attrs.ROIPoolAttrs");

// Every operand is laid out as the first one; N, C and blocks of C keep their letters.
void AddBatchAndChannels(const OpView& view, const std::string& layout,
                         const std::string& out_layout, RuleBuilder* builder) {
  Sizes sizes = StaticSizes(view.operands[0]);
  bool can_split = !IsBlocked(layout + out_layout) || layout == out_layout;
  for (char letter : {'N', 'C', 'c'}) {
    int dim = DimOf(layout, letter), out_dim = DimOf(out_layout, letter);
    if (dim < 0 || dim >= static_cast<int>(sizes.size()) || out_dim < 0) continue;
    if (letter != 'N' && !can_split) continue;
    int factor = builder->Parallel(sizes[dim]);
    for (size_t i = 0; i < view.operands.size(); ++i) builder->Operand(i, dim, factor);
    builder->Result(0, out_dim, factor);
  }
}

template <const PoolFields* fields>
FactorRule Pool(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  RuleBuilder builder(view);
  AddBatchAndChannels(view, LayoutLetters(fields->layout.Text(attrs)),
                      LayoutLetters(fields->out_layout.Text(attrs)), &builder);
  AddWindowFactors(view, &builder);
  return builder.Finish();
}

// The gradient has the layout of the data, whatever out_layout says.
FactorRule PoolBackward(const OpView& view) {
  std::string layout = LayoutLetters(kPool2d.layout.Text(view.call.attrs()));
  RuleBuilder builder(view);
  AddBatchAndChannels(view, layout, layout, &builder);
  AddGradientFactors(view, &builder);
  return builder.Finish();
}

bool IsFloat(const ir::TensorType& type) {
  if (!type.dtype().defined()) return false;
  const uint8_t code = type.dtype().dtype().code;
  return code == kDLFloat || code == kDLBfloat;
}

// Windows of one size, one behind the other, where the sizes divide. Shards of windows have means
// of their own, but a mean of integers is rounded once only.
template <const PoolFields* fields>
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
                                              : builder.Replicate(window));
  }
  return builder.Finish();
}

/*! \brief The spatial sizes of a result, in the order that attributes and arguments have. */
template <const PoolFields* fields>
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

template <const ImageFields* fields>
FactorRule Resize(const OpView& view) {
  const std::string layout = LayoutLetters(fields->layout.Text(view.call.attrs()));
  RuleBuilder builder(view);
  AddBatchAndChannels(view, layout, layout, &builder);
  AddResizingFactors(view, &builder);
  return builder.Finish();
}

template <const ImageFields* fields>
ffi::Array<ir::Expr> LocalSize(const OpView& global, const OpView& local) {
  const std::string layout = LayoutLetters(fields->layout.Text(global.call.attrs()));
  ffi::Array<ir::Expr> args = local.call.args(), size;
  if (!ir::HasKnownShape(local.results[0])) return args;
  for (char letter : kSpatialLetters) {
    const int dim = DimOf(layout, letter);
    if (dim >= 0) size.push_back(ir::ShapeOf(local.results[0])[dim]);
  }
  args.Set(1, ir::MakeShape(size));
  return args;
}

// data [n c . .], grid [n . h w], result [n c h w]: every point of the grid is sampled alone.
FactorRule GridSample(const OpView& view) {
  std::string layout = kGridSample.layout.Text(view.call.attrs());
  if (layout != "NCHW" && layout != "NCDHW") return ReplicateAll(view);
  Sizes sizes = StaticSizes(view.results[0]);
  RuleBuilder builder(view);
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    int factor = builder.Parallel(sizes[d]);
    if (d < 2) builder.Operand(0, d, factor);
    if (d != 1) builder.Operand(1, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

// theta [n . .], result [n . . .]
FactorRule AffineGrid(const OpView& view) {
  RuleBuilder builder(view);
  int batch = builder.Parallel(StaticSizes(view.operands[0])[0]);
  builder.Operand(0, 0, batch);
  builder.Result(0, 0, batch);
  return builder.Finish();
}

// data [. c . .], regions [r .], result [r c . .]: a region names its image.
template <const ImageFields* fields>
FactorRule Regions(const OpView& view) {
  std::string layout = LayoutLetters(fields->layout.Text(view.call.attrs()));
  int batch = DimOf(layout, 'N'), channels = DimOf(layout, 'C');
  if (batch < 0 || channels < 0) return ReplicateAll(view);
  RuleBuilder builder(view);
  int region = builder.Parallel(StaticSizes(view.operands[1])[0]);
  builder.Operand(1, 0, region);
  builder.Result(0, batch, region);
  int channel = builder.Parallel(StaticSizes(view.operands[0])[channels]);
  builder.Operand(0, channels, channel);
  builder.Result(0, channels, channel);
  return builder.Finish();
}

// data [.., c u u, h, w], result [.., c, h u, w u]
FactorRule PixelShuffle(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  Sizes out = StaticSizes(view.results[0]);
  int rank = static_cast<int>(sizes.size());
  if (rank < 3 || sizes[rank - 1] < 0 || sizes[rank - 2] < 0 || sizes[rank - 3] < 0)
    return ReplicateAll(view);
  int64_t upscale = out[rank - 1] / sizes[rank - 1];
  RuleBuilder builder(view);
  for (int d = 0; d < rank - 2; ++d) {
    int factor = builder.Parallel(out[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
  }
  for (int d = rank - 2; d < rank; ++d) {
    int factor = builder.Parallel(sizes[d]);
    int inner = builder.Replicate(upscale);
    builder.Operand(0, rank - 3, inner);
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
    builder.Result(0, d, inner);
  }
  return builder.Finish();
}

// Every operand and result has the batch first.
FactorRule BatchFirst(const OpView& view) {
  RuleBuilder builder(view);
  int batch = builder.Parallel(StaticSizes(view.operands[0])[0]);
  for (size_t i = 0; i < view.operands.size(); ++i) {
    // Anchors are the same for the whole batch.
    if (SameSize(view.operands[i], 0, view.operands[0], 0)) builder.Operand(i, 0, batch);
  }
  for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, 0, batch);
  return builder.Finish();
}

const RuleTable kAdaptive(
    "pooling",
    {"batch, channels, windows one behind the other", "pixels of such a window: mean",
     "spatial dimensions that the result's size does not divide"},
    {{"relax.nn.adaptive_avg_pool1d", Adaptive<&kAdaptive1d>, -1, LocalOutputSize<&kAdaptive1d>},
     {"relax.nn.adaptive_avg_pool2d", Adaptive<&kAdaptive2d>, -1, LocalOutputSize<&kAdaptive2d>},
     {"relax.nn.adaptive_avg_pool3d", Adaptive<&kAdaptive3d>, -1, LocalOutputSize<&kAdaptive3d>}});
const RuleTable kPoolBackward("pooling",
                              {"batch, channels, windows one behind the other", "",
                               "spatial dimensions whose windows overlap or are padded"},
                              {{"relax.grad.avg_pool2d_backward", PoolBackward},
                               {"relax.grad.max_pool2d_backward", PoolBackward}});
const RuleTable kWindows("pooling",
                         {"batch, channels", "",
                          "spatial dimensions of one element or unknown extent",
                          "spatial dimensions: every shard gets what its windows look at"},
                         {{"relax.nn.avg_pool1d", Pool<&kPool1d>},
                          {"relax.nn.avg_pool2d", Pool<&kPool2d>},
                          {"relax.nn.avg_pool3d", Pool<&kPool3d>},
                          {"relax.nn.max_pool1d", Pool<&kPool1d>},
                          {"relax.nn.max_pool2d", Pool<&kPool2d>},
                          {"relax.nn.max_pool3d", Pool<&kPool3d>}});
const RuleTable kResize(
    "image",
    {"batch, channels, blocks of nearest neighbours", "",
     "spatial dimensions of coprime extents, whose corners are aligned, or where the nearest of "
     "two neighbours follows from the whole size",
     "spatial dimensions: every shard gets its neighbours' pixels"},
    {{"relax.image.resize2d", Resize<&kResize2d>, -1, nullptr, LocalSize<&kResize2d>},
     {"relax.image.resize3d", Resize<&kResize3d>, -1, nullptr, LocalSize<&kResize3d>}});
const RuleTable kGrid("image", {"batch, channels, points of the grid", "", "the image"},
                      {{"relax.image.grid_sample", GridSample}});
const RuleTable kAffine("image", {"batch", "", "the matrix, the grid"},
                        {{"relax.image.affine_grid", AffineGrid}});
const RuleTable kShuffle("image", {"batch, channels, spatial dimensions", "", "the upscaling"},
                         {{"relax.nn.pixel_shuffle", PixelShuffle}});
const RuleTable kRegions("vision", {"regions, channels", "", "images"},
                         {{"relax.vision.roi_align", Regions<&kRoiAlign>},
                          {"relax.vision.roi_pool", Regions<&kRoiPool>}});
const RuleTable kDetection("vision", {"batch", "", "boxes, classes"},
                           {{"relax.vision.get_valid_counts", BatchFirst},
                            {"relax.vision.multibox_transform_loc", BatchFirst},
                            {"relax.vision.non_max_suppression", BatchFirst}});

}  // namespace

}  // namespace rules
}  // namespace distir
