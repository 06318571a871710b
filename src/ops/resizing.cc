// Images resized along their spatial dimensions.
//
// Pixels of an image that each pixel of a resized one is made of, along one dimension.
//
// Of n pixels g p become g q, with p and q coprime: every p of them become q, at the same places
// between them. A group of p looks at `reach` pixels beyond its ends, at the border at the last
// pixel instead. Worked example, 8 to 12, linear: groups of 2 become 3, pixel 3 of the result lies
// at 1.83, so that it looks at pixel 1, of another group.
//
// Resizing along sharded dimensions of an image. Every device gets the pixels around its shard, at
// a border the last one again, and resizes them with the shard, which then is a part of the batch;
// what became of them is cut off.
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "decompose/blocks.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ops/image_layout.h"

namespace distir::ops {

namespace {

using decompose::Cut;
using decompose::ShardsBack;
using decompose::ShardsFirst;
using ir::attrs::ResizeFields;
using rules::DimOf;
using rules::kSpatialLetters;
using rules::LayoutLetters;

/*! \brief One spatial dimension that shards may resize alone. */
struct ResizedDim {
  int dim;
  int spatial;  // which of the sizes that the call states is its own
  int64_t groups;
  int64_t group, result_group;  // pixels
  int64_t reach;
};

// ---- factor rules

/*! \brief True if every pixel is one of its group, and which one does not depend on how large the
 * numbers are that its place is computed from. */
bool IsNearestInGroup(const std::string& places, const std::string& rounding, int64_t group,
                      int64_t result_group) {
  if (places == "asymmetric")
    return (rounding.empty() || rounding == "floor") && (group == 1 || result_group == 1);
  if (result_group == 1) return true;
  // Places halfway between two pixels are exact between whole numbers of pixels only.
  return rounding.rfind("round", 0) == 0 && group % 2 != 0;
}

std::optional<int64_t> ReachOf(const ResizeFields& fields, const OpView& view, int64_t group,
                               int64_t result_group) {
  const ir::Node& attrs = view.call.attrs();
  const std::string method = fields.method.Text(attrs), places = fields.places.Text(attrs);
  if (places != "half_pixel" && places != "pytorch_half_pixel" && places != "asymmetric")
    return std::nullopt;
  if (method == "nearest_neighbor") {
    if (!IsNearestInGroup(places, fields.rounding.Text(attrs), group, result_group))
      return std::nullopt;
    return 0;
  }
  // Integers are rounded in the end, where the last bit of a place counts.
  const uint8_t code = view.operands[0].dtype().code;
  if (code != kDLFloat && code != kDLBfloat) return std::nullopt;
  if (method == "linear") return 1;
  if (method == "cubic" && fields.cubic_exclude.Int(attrs, 0) == 0) return 2;
  return std::nullopt;
}

/*! \brief The dimensions that shards may resize alone; those whose places follow from the whole
 * size are left out. */
std::vector<ResizedDim> ResizedDims(const OpView& view, const ResizeFields& fields) {
  const std::string layout = LayoutLetters(fields.layout.Text(view.call.attrs()));
  const Sizes from = StaticSizes(view.operands[0]), to = StaticSizes(view.results[0]);
  if (from.size() != layout.size() || DimOf(layout, 'N') != 0 || !view.operands[0].has_dtype())
    return {};
  std::vector<ResizedDim> dims;
  int spatial = 0;
  for (char letter : kSpatialLetters) {
    const int d = DimOf(layout, letter);
    if (d < 0) continue;
    const int index = spatial++;
    if (from[d] <= 0 || to[d] <= 1) continue;
    const int64_t groups = std::gcd(from[d], to[d]);
    const int64_t group = from[d] / groups, result_group = to[d] / groups;
    const std::optional<int64_t> reach = ReachOf(fields, view, group, result_group);
    if (groups > 1 && reach) dims.push_back({d, index, groups, group, result_group, *reach});
  }
  return dims;
}

/*! \brief Gives each of them a factor: parallel where no pixel looks into another group. */
void AddResizingFactors(const OpView& view, const ResizeFields& fields, RuleBuilder* builder) {
  for (const ResizedDim& dim : ResizedDims(view, fields)) {
    if (dim.reach == 0) {
      const int factor = builder->Parallel(dim.groups);
      builder->Operand(0, dim.dim, factor);
      builder->Operand(0, dim.dim, builder->NeedsReplication(dim.group));
      builder->Result(0, dim.dim, factor);
      builder->Result(0, dim.dim, builder->NeedsReplication(dim.result_group));
      continue;
    }
    const double part =
        2.0 * static_cast<double>(dim.reach) / static_cast<double>(dim.groups * dim.group);
    const int factor = builder->Decomposed(dim.groups, Exchanged::kNeighbours, part);
    builder->Operand(0, dim.dim, factor);
    builder->Result(0, dim.dim, factor);
  }
}

template <const ResizeFields* fields>
FactorRule Resize(const OpView& view) {
  const std::string layout = LayoutLetters(fields->layout.Text(view.call.attrs()));
  RuleBuilder builder(view);
  AddBatchAndChannels(view, layout, layout, &builder);
  AddResizingFactors(view, *fields, &builder);
  return builder.Finish();
}

template <const ResizeFields* fields>
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

// ---- decompositions

/*! \brief A sharded dimension: pixels of each shard, and whole groups before and behind it, of
 * which those that the shard's own look at have pixels. The last shards may have fewer, and others
 * in their place that are cut off. */
struct ResizedRows {
  ResizedDim dim;
  int64_t shards;
  int64_t length;
  int64_t around;  // whole groups

  ResizedRows(const ResizedDim& dim, int64_t shards)
      : dim(dim),
        shards(shards),
        length(mesh::EvenExtent(dim.groups, shards) / shards * dim.group),
        around((dim.reach + dim.group - 1) / dim.group * dim.group) {}

  int64_t Resized(int64_t pixels) const { return pixels / dim.group * dim.result_group; }
  int64_t total() const { return length + 2 * around; }

  std::vector<mesh::Segment> Segments() const {
    std::vector<mesh::Segment> segments;
    const int64_t size = dim.groups * dim.group;
    for (int64_t s = 0; s < shards; ++s) {
      const int64_t begin = s * length - dim.reach, end = begin + length + 2 * dim.reach;
      const int64_t target = s * total() + around - dim.reach;
      const int64_t from = std::max<int64_t>(begin, 0), to = std::min(end, size);
      if (begin < 0) segments.push_back({0, target, 0, -begin});
      if (from < to) segments.push_back({from, target + from - begin, 1, to - from});
      const int64_t behind = std::max(size, begin);
      if (end > behind) segments.push_back({size - 1, target + behind - begin, 0, end - behind});
    }
    return segments;
  }
};

/*! \brief The axes of all dimensions, and of the batch that has the shards. */
std::vector<mesh::AxisList> ResizedAxesOf(const DecomposedCall& call) {
  std::vector<mesh::AxisList> lists = call.sharding.operands[0].dims;
  mesh::AxisList merged;
  for (size_t d = 0; d < lists.size(); ++d) {
    if (call.IsDecomposed(0, static_cast<int>(d)))
      merged.insert(merged.end(), lists[d].begin(), lists[d].end());
  }
  merged.insert(merged.end(), lists[0].begin(), lists[0].end());
  lists.push_back(merged);
  return lists;
}

template <const ResizeFields* fields>
ir::Expr DecomposeResize(const DecomposedCall& call, Writer* writer) {
  Writer named = writer->OnViewOf(ResizedAxesOf(call));
  Writer* w = &named;
  ir::Expr x = w->Named(call.arg(0));
  const ir::TensorType whole = ir::TensorType::Cast(call.result());
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(whole);
  std::vector<ResizedRows> looked;
  std::vector<int64_t> shards(shape.size(), 0);
  for (const ResizedDim& dim : ResizedDims(ViewCall(call.call, call.result()), *fields)) {
    if (!call.IsDecomposed(0, dim.dim)) continue;
    shards[dim.dim] = mesh::NumShards(call.sharding.operands[0].dims[dim.dim]);
    looked.emplace_back(dim, shards[dim.dim]);
    x = w->Move(x, dim.dim, shards[dim.dim] * looked.back().total(), looked.back().Segments());
  }
  x = ShardsFirst(x, 0, shards, w);
  const ir::NodeArray<ir::Expr>& apart = ir::ShapeOf(TensorTypeOf(x));
  const size_t batch = looked.size();  // the dimension behind those of shards
  ffi::Array<ir::Expr> merged{
      ir::Product(std::vector<ir::Expr>(apart.begin(), apart.begin() + batch + 1))};
  for (size_t d = batch + 1; d < apart.size(); ++d) merged.push_back(apart[d]);
  x = w->Reshape(x, merged);
  ffi::Array<ir::Expr> size = ir::ShapeExpr::Cast(call.arg(1)).values();
  for (const ResizedRows& each : looked)
    size.Set(each.dim.spatial, ir::MakeInt(each.Resized(each.total())));
  x = w->Place(
      ir::MakeCall(call.call.ty(), call.call.op(), {x, ir::MakeShape(size)}, call.attrs()));
  for (const ResizedRows& each : looked) {
    const int64_t begin = each.Resized(each.around);
    x = Cut(x, each.dim.dim, begin, begin + each.Resized(each.length), w);
  }
  ffi::Array<ir::Expr> even(shape.begin(), shape.end());
  for (const ResizedRows& each : looked)
    even.Set(each.dim.dim, ir::MakeInt(each.shards * each.Resized(each.length)));
  ir::Expr result = ShardsBack(x, even, 0, shards, w);
  for (const ResizedRows& each : looked) {
    result = w->Resized(result, each.dim.dim, each.dim.groups * each.dim.result_group);
  }
  return result;
}

// ---- the records

const Operators kResize(
    "image",
    {"batch, channels, blocks of nearest neighbours", "",
     "spatial dimensions of coprime extents, whose corners are aligned, or where the nearest of "
     "two neighbours follows from the whole size",
     "spatial dimensions: every shard gets its neighbours' pixels"},
    {Operator("relax.image.resize2d", Resize<&ir::attrs::kResize2d>)
         .Decompose(DecomposeResize<&ir::attrs::kResize2d>)
         .Pad(Padding::kDecomposed)
         .LocalArgs(LocalSize<&ir::attrs::kResize2d>),
     Operator("relax.image.resize3d", Resize<&ir::attrs::kResize3d>)
         .Decompose(DecomposeResize<&ir::attrs::kResize3d>)
         .Pad(Padding::kDecomposed)
         .LocalArgs(LocalSize<&ir::attrs::kResize3d>)});

}  // namespace

}  // namespace distir::ops
