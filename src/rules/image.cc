// Pooling, resizing and sampling of images: batch and channels are parallel. The spatial dimensions
// of pooling are in rules/windows.h, of others the data is kept whole along them.
#include "rules/layout.h"
#include "rules/registry.h"
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
FactorRule BatchAndChannels(const OpView& view, const std::string& layout,
                            const std::string& out_layout) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  bool can_split = !IsBlocked(layout + out_layout) || layout == out_layout;
  for (char letter : {'N', 'C', 'c'}) {
    int dim = DimOf(layout, letter), out_dim = DimOf(out_layout, letter);
    if (dim < 0 || dim >= static_cast<int>(sizes.size()) || out_dim < 0) continue;
    if (letter != 'N' && !can_split) continue;
    int factor = builder.Parallel(sizes[dim]);
    for (size_t i = 0; i < view.operands.size(); ++i) builder.Operand(i, dim, factor);
    builder.Result(0, out_dim, factor);
  }
  AddWindowFactors(view, &builder);
  return builder.Finish();
}

template <const PoolFields* fields>
FactorRule Pool(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  return BatchAndChannels(view, LayoutLetters(fields->layout.Text(attrs)),
                          LayoutLetters(fields->out_layout.Text(attrs)));
}

template <const ImageFields* fields>
FactorRule SameLayout(const OpView& view) {
  std::string layout = LayoutLetters(fields->layout.Text(view.call.attrs()));
  return BatchAndChannels(view, layout, layout);
}

// The gradient has the layout of the data, whatever out_layout says.
FactorRule PoolBackward(const OpView& view) {
  std::string layout = LayoutLetters(kPool2d.layout.Text(view.call.attrs()));
  return BatchAndChannels(view, layout, layout);
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

constexpr RuleSummary kBatchAndChannels = {"batch, channels", "", "spatial dimensions"};

const RuleTable kPooling("pooling", kBatchAndChannels,
                         {{"relax.grad.avg_pool2d_backward", PoolBackward},
                          {"relax.grad.max_pool2d_backward", PoolBackward},
                          {"relax.nn.adaptive_avg_pool1d", Pool<&kAdaptive1d>},
                          {"relax.nn.adaptive_avg_pool2d", Pool<&kAdaptive2d>},
                          {"relax.nn.adaptive_avg_pool3d", Pool<&kAdaptive3d>}});
const RuleTable kWindows("pooling",
                         {"batch, channels", "", "spatial dimensions of coprime extents",
                          "spatial dimensions: every shard gets what its windows look at"},
                         {{"relax.nn.avg_pool1d", Pool<&kPool1d>},
                          {"relax.nn.avg_pool2d", Pool<&kPool2d>},
                          {"relax.nn.avg_pool3d", Pool<&kPool3d>},
                          {"relax.nn.max_pool1d", Pool<&kPool1d>},
                          {"relax.nn.max_pool2d", Pool<&kPool2d>},
                          {"relax.nn.max_pool3d", Pool<&kPool3d>}});
const RuleTable kResize("image", kBatchAndChannels,
                        {{"relax.image.resize2d", SameLayout<&kResize2d>},
                         {"relax.image.resize3d", SameLayout<&kResize3d>}});
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
