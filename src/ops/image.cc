// Sampling of images and of regions in them: the image is replicated, the samples are parallel.
#include <string>

#include "ops/family.h"
#include "rules/factor/layout.h"

namespace distir::ops {

namespace {

using rules::DimOf;
using rules::LayoutLetters;

// data [n c . .], grid [n . h w], result [n c h w]: every point of the grid is sampled alone.
FactorRule GridSample(const OpView& view) {
  std::string layout = ir::attrs::kGridSampleLayout.Text(view.call.attrs());
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
template <const ir::AttrField* layout_field>
FactorRule Regions(const OpView& view) {
  std::string layout = LayoutLetters(layout_field->Text(view.call.attrs()));
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
    int inner = builder.NeedsReplication(upscale);
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

const Operators kGrid("image", {"batch, channels, points of the grid", "", "the image"},
                      {Operator("relax.image.grid_sample", GridSample)
                           .Pad(Padding::kParallel)
                           .Tails(OperandTails::kPositions)});
const Operators kAffine("image", {"batch", "", "the matrix, the grid"},
                        {Operator("relax.image.affine_grid", AffineGrid).Pad(Padding::kParallel)});
const Operators kShuffle(
    "image", {"batch, channels, spatial dimensions", "", "the upscaling"},
    {Operator("relax.nn.pixel_shuffle", PixelShuffle).Pad(Padding::kParallel).PadGrains()});
const Operators kRegions("vision", {"regions, channels", "", "images"},
                         {Operator("relax.vision.roi_align", Regions<&ir::attrs::kROIAlignLayout>)
                              .Adds(Accumulation::kSums)
                              .Pad(Padding::kParallel)
                              .Tails(OperandTails::kPositions),
                          Operator("relax.vision.roi_pool", Regions<&ir::attrs::kROIPoolLayout>)
                              .Pad(Padding::kParallel)
                              .Tails(OperandTails::kPositions)});
const Operators kDetection(
    "vision", {"batch", "", "boxes, classes"},
    {Operator("relax.vision.get_valid_counts", BatchFirst).Pad(Padding::kParallel),
     Operator("relax.vision.multibox_transform_loc", BatchFirst)
         .Adds(Accumulation::kSums)
         .Pad(Padding::kParallel),
     Operator("relax.vision.non_max_suppression", BatchFirst)
         .Pad(Padding::kParallel)
         .Tails(OperandTails::kPositions)});

}  // namespace

}  // namespace distir::ops
