// Operators that cut, join or look up along one dimension: that dimension is replicated, the others
// pass through.
// Operators that only move elements along a dimension: every device gets those of its shard of the
// result that it lacks, in one exchange.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "ops/family.h"

namespace distir::ops {

namespace {

// ---- factor rules

constexpr double kAllElements = std::numeric_limits<double>::infinity();

// kMovedIfUsed: what is split or joined are often different things (the gates of a cell, the halves
// of a rotation), which are used as their own shardings say.
enum class Along { kWhole, kMoved, kMovedIfUsed };

// All operands and results have one rank; along the dimensions in `mask` all is needed or elements
// move, at most `elements` of each to a shard.
FactorRule SameRank(const OpView& view, const std::vector<bool>& mask, Along along,
                    const std::vector<double>& elements = {}) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    if (mask[d]) {
      if (along != Along::kWhole) {
        MovedAlong(view, d, along == Along::kMovedIfUsed, &builder,
                   elements.empty() ? kAllElements : elements[d]);
      }
      continue;
    }
    int factor = builder.Parallel(sizes[d]);
    for (size_t i = 0; i < view.operands.size(); ++i) builder.Operand(i, d, factor);
    for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, d, factor);
  }
  return builder.Finish();
}

FactorRule Concat(const OpView& view) {
  if (view.operands.empty()) return ReplicateAll(view);
  ffi::Any axis = ir::attrs::kConcatAxis(view.call.attrs());
  return SameRank(view, AxisMask(axis, ShardableRank(view.operands[0])), Along::kMovedIfUsed);
}

FactorRule Split(const OpView& view) {
  return SameRank(
      view, AxisMask(ir::attrs::kSplitAxis(view.call.attrs()), ShardableRank(view.operands[0])),
      Along::kMovedIfUsed);
}

FactorRule Flip(const OpView& view) {
  return SameRank(
      view, AxisMask(ir::attrs::kFlipAxis(view.call.attrs()), ShardableRank(view.operands[0])),
      Along::kMoved);
}

/*! \brief Per dimension of a slice's operand whether the slice takes only part of it, or may. */
std::vector<bool> CutDims(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  std::vector<bool> cut(rank, true);
  const ir::NodeArray<ir::Expr>& args = view.call.args();
  auto axes = ir::Tuple::Cast(args[1]);
  auto begin = ir::Tuple::Cast(args[2]);
  auto strides = args.size() > 4 ? ir::Tuple::Cast(args[4]) : ir::Tuple();
  if (!axes.defined() || !begin.defined() || (args.size() > 4 && !strides.defined())) return cut;
  auto is_int = [](const ir::Expr& expr, int64_t value) {
    return ir::IntImm::Is(expr) && ir::IntImm::Cast(expr).value() == value;
  };
  for (const ir::Expr& axis : axes.fields()) {
    if (!ir::IntImm::Is(axis)) return cut;
  }
  cut.assign(rank, false);
  for (size_t i = 0; i < axes.fields().size(); ++i) {
    int d = NormalizeAxis(ir::IntImm::Cast(axes.fields()[i]).value(), rank);
    cut[d] = !is_int(begin.fields()[i], 0) || !SameSize(view.operands[0], d, view.results[0], d) ||
             (strides.defined() && !is_int(strides.fields()[i], 1));
  }
  return cut;
}

/*! \brief Per dimension, how many elements of the result a shard gets from others. */
std::vector<double> ElementsMoved(const OpView& view) {
  const ir::NodeArray<ir::Expr>& args = view.call.args();
  const std::vector<int64_t> axes = *IntegersOf(args[1]);
  const std::vector<int64_t> begins = *IntegersOf(args[2]);
  const Sizes sizes = StaticSizes(view.operands[0]), sliced = StaticSizes(view.results[0]);
  std::vector<double> elements(sizes.size(), kAllElements);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int d = NormalizeAxis(axes[i], static_cast<int>(sizes.size()));
    const int64_t stride = args.size() > 4 ? (*IntegersOf(args[4]))[i] : 1;
    if (stride <= 0 || sizes[d] < 0 || sliced[d] < 0) continue;
    int64_t begin = begins[i] < 0 ? begins[i] + sizes[d] : begins[i];
    begin = std::clamp<int64_t>(begin, 0, sizes[d]);
    // A shard's part of the result lies behind its part of the operand, by `begin` at the front,
    // or before it, by what is cut off at the back.
    const int64_t cut = std::abs(sizes[d] - begin - stride * sliced[d]);
    elements[d] = static_cast<double>(std::max(begin, cut)) / static_cast<double>(stride);
  }
  return elements;
}

FactorRule StridedSlice(const OpView& view) {
  if (!ir::HasKnownShape(view.operands[0]) || !ir::HasKnownShape(view.results[0]))
    return ReplicateAll(view);
  bool is_known = IntegersOf(view.call.args()[1]) && IntegersOf(view.call.args()[2]) &&
                  (view.call.args().size() < 5 || IntegersOf(view.call.args()[4]));
  if (!is_known) return SameRank(view, CutDims(view), Along::kWhole);
  return SameRank(view, CutDims(view), Along::kMoved, ElementsMoved(view));
}

// A slice that takes all of a dimension ends at the worker's size of it.
ffi::Array<ir::Expr> LocalEnds(const OpView& global, const OpView& local) {
  ffi::Array<ir::Expr> args = local.call.args();
  auto axes = ir::Tuple::Cast(args[1]);
  auto ends = ir::Tuple::Cast(args[3]);
  if (!axes.defined() || !ends.defined() || !ir::HasKnownShape(local.operands[0])) return args;
  std::vector<bool> cut = CutDims(global);
  ffi::Array<ir::Expr> fields = ends.fields();
  for (size_t i = 0; i < fields.size(); ++i) {
    if (!ir::IntImm::Is(axes.fields()[i])) return args;
    int d = NormalizeAxis(ir::IntImm::Cast(axes.fields()[i]).value(), static_cast<int>(cut.size()));
    if (!cut[d]) fields.Set(i, ir::ShapeOf(local.operands[0])[d]);
  }
  args.Set(3, ir::MakeTuple(fields));
  return args;
}

/*! \brief True if the padding of every dimension can be taken from it piece by piece. */
bool MayMove(const OpView& view, const ffi::Array<int64_t>& widths) {
  const std::string mode = ir::attrs::kPadPadMode.Text(view.call.attrs());
  Sizes sizes = StaticSizes(view.operands[0]);
  for (size_t d = 0; d < sizes.size(); ++d) {
    for (int64_t width : {widths[2 * d], widths[2 * d + 1]}) {
      if (width < 0 || (mode == "circular" && width > sizes[d]) ||
          (mode == "reflect" && width >= sizes[d]))
        return false;
    }
  }
  return true;
}

// Pairs of sizes before and after each dimension.
FactorRule Pad(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  auto widths = ir::attrs::kPadPadWidth(view.call.attrs()).as<ffi::Array<int64_t>>();
  std::vector<bool> padded(rank, true);
  if (!widths.has_value()) return SameRank(view, padded, Along::kWhole);
  std::vector<double> elements;
  for (int d = 0; d < rank; ++d) {
    const int64_t before = (*widths)[2 * d], after = (*widths)[2 * d + 1];
    padded[d] = before != 0 || after != 0;
    elements.push_back(static_cast<double>(std::max(before, after)));
  }
  return SameRank(view, padded, MayMove(view, *widths) ? Along::kMoved : Along::kWhole, elements);
}

// ---- decompositions

using mesh::Segment;

int64_t SizeOf(const ir::Type& type, int dim) {
  return ir::StaticDim(ir::ShapeOf(ir::TensorType::Cast(type))[dim]);
}
int64_t SizeOf(const ir::Expr& x, int dim) { return SizeOf(TensorTypeOf(x), dim); }

ir::Expr DecomposeFlip(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int axis = Marked(AxisMask(ir::attrs::kFlipAxis(call.attrs()), RankOf(x)))[0];
  int64_t size = SizeOf(x, axis);
  return w->Move(x, axis, size, {{size - 1, 0, -1, size}});
}

// Slices along replicated dimensions come first, so that less is moved.
ir::Expr DecomposeStridedSlice(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  const ir::NodeArray<ir::Expr>& args = call.call.args();
  const std::vector<int64_t> axes = *IntegersOf(args[1]);
  const std::vector<int64_t> begins = *IntegersOf(args[2]);
  std::vector<int64_t> strides(axes.size(), 1);
  if (args.size() > 4) strides = *IntegersOf(args[4]);
  ffi::Array<ir::Expr> rest[4];  // axes, begins, ends, strides
  std::vector<std::pair<int, Segment>> moved;
  for (size_t i = 0; i < axes.size(); ++i) {
    int dim = NormalizeAxis(axes[i], RankOf(x));
    if (!call.IsDecomposed(0, dim)) {
      const ir::NodeArray<ir::Expr>& ends = ir::Tuple::Cast(args[3]).fields();
      const ir::Expr values[] = {ir::MakeInt(dim), ir::MakeInt(begins[i]), ends[i],
                                 ir::MakeInt(strides[i])};
      for (int k = 0; k < 4; ++k) rest[k].push_back(values[k]);
      continue;
    }
    int64_t size = SizeOf(x, dim);
    int64_t begin = begins[i] < 0 ? begins[i] + size : begins[i];
    begin = std::clamp<int64_t>(begin, 0, size - 1);  // of what is not empty
    moved.push_back({dim, {begin, 0, strides[i], SizeOf(call.result(), dim)}});
  }
  if (!rest[0].empty()) {
    x = w->Write(ir::make::kStridedSlice, x, ir::MakeTuple(rest[0]), ir::MakeTuple(rest[1]),
                 ir::MakeTuple(rest[2]), ir::MakeTuple(rest[3]), false);
  }
  for (const auto& [dim, segment] : moved) x = w->Move(x, dim, segment.count, {segment});
  return x;
}

/*! \brief Segments of a result padded by `before` and `after` that the tensor itself has. */
std::vector<Segment> PaddingSegments(const std::string& mode, int64_t size, int64_t before,
                                     int64_t after) {
  const int64_t behind = before + size;
  std::vector<Segment> segments{{0, before, 1, size}};
  if (mode == "reflect") {
    segments.push_back({before, 0, -1, before});
    segments.push_back({size - 2, behind, -1, after});
  } else if (mode == "replicate") {
    segments.push_back({0, 0, 0, before});
    segments.push_back({size - 1, behind, 0, after});
  } else if (mode == "circular") {
    segments.push_back({size - before, 0, 1, before});
    segments.push_back({0, behind, 1, after});
  }
  segments.erase(std::remove_if(segments.begin(), segments.end(),
                                [](const Segment& segment) { return segment.count == 0; }),
                 segments.end());
  return segments;
}

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

ir::Expr DecomposePad(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  auto widths = ir::attrs::kPadPadWidth(call.attrs()).cast<ffi::Array<int64_t>>();
  const std::string mode = ir::attrs::kPadPadMode.Text(call.attrs());
  const double value = ir::attrs::kPadPadValue(call.attrs()).cast<double>();
  bool any_whole = false;
  std::vector<int> moved;
  for (int d = 0; d < RankOf(x); ++d) {
    if (call.IsDecomposed(0, d)) {
      moved.push_back(d);
    } else {
      any_whole = any_whole || widths[2 * d] != 0 || widths[2 * d + 1] != 0;
    }
  }
  ffi::Array<int64_t> of_whole = widths;
  for (int d : moved) {
    int64_t size = SizeOf(x, d), before = widths[2 * d], after = widths[2 * d + 1];
    x = w->Move(x, d, before + size + after, PaddingSegments(mode, size, before, after),
                NumberText(value));
    of_whole.Set(2 * d, 0);
    of_whole.Set(2 * d + 1, 0);
  }
  return any_whole ? w->Write(ir::make::kNnPad, x, of_whole, ffi::String(mode), value) : x;
}

/*! \brief The shards of several tensors along one dimension, laid out as one tensor whose shard s
 * has shard s of each of them, one behind the other; shards of one tensor are of one size, its last
 * ones with anything behind what they have. */
class Interleaved {
 public:
  Interleaved(std::vector<int64_t> sizes, int64_t shards)
      : sizes_(std::move(sizes)), shards_(shards) {
    for (int64_t size : sizes_) shard_ += Part(size);
  }

  /*! \brief The extent of this layout. */
  int64_t total() const { return shards_ * shard_; }
  /*! \brief The extent of a shard of a tensor of that size. */
  int64_t Part(int64_t size) const { return mesh::EvenExtent(size, shards_) / shards_; }

  /*! \brief Segments from the concatenated tensors to this layout. */
  std::vector<Segment> FromConcatenated() const {
    std::vector<Segment> segments;
    for (int64_t s = 0; s < shards_; ++s) {
      int64_t begin = 0;        // of the tensor
      int64_t at = s * shard_;  // of its shard here
      for (int64_t size : sizes_) {
        const int64_t part = Part(size);
        const int64_t count = std::min(part, size - s * part);
        if (count > 0) segments.push_back({begin + s * part, at, 1, count});
        begin += size;
        at += part;
      }
    }
    return segments;
  }

  std::vector<Segment> ToConcatenated() const {
    std::vector<Segment> segments = FromConcatenated();
    for (Segment& segment : segments) std::swap(segment.source, segment.target);
    return segments;
  }

 private:
  std::vector<int64_t> sizes_;
  int64_t shards_;
  int64_t shard_ = 0;  // the extent of a shard of this layout
};

/*! \brief A shape with another extent of one dimension. */
ffi::Array<ir::Expr> WithExtent(ffi::Array<ir::Expr> shape, int dim, int64_t extent) {
  shape.Set(dim, ir::MakeInt(extent));
  return shape;
}

ir::Expr DecomposeConcat(const DecomposedCall& call, Writer* w) {
  auto tuple = ir::Tuple::Cast(call.arg(0));
  ffi::Array<ir::Expr> shards;
  std::vector<int64_t> sizes;
  int axis = 0;
  int64_t count = mesh::NumShards(call.DecomposedAxes());
  for (const ir::Expr& x : tuple.fields()) {
    axis = Marked(AxisMask(ir::attrs::kConcatAxis(call.attrs()), RankOf(x)))[0];
    sizes.push_back(SizeOf(x, axis));
    ir::Expr even = w->Even(x, axis);
    shards.push_back(w->Reshape(even, SplitShape(even, axis, count)));
  }
  Interleaved layout(sizes, count);
  ir::Expr joined = w->Write(ir::make::kConcat, ir::MakeTuple(shards), int64_t(axis + 1));
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(ir::TensorType::Cast(call.result()));
  return w->Move(w->Reshape(joined, WithExtent(shape, axis, layout.total())), axis,
                 ir::StaticDim(shape[axis]), layout.ToConcatenated());
}

ir::Expr DecomposeSplit(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int axis = Marked(AxisMask(ir::attrs::kSplitAxis(call.attrs()), RankOf(x)))[0];
  int64_t count = mesh::NumShards(call.DecomposedAxes());
  const ffi::Array<ir::Type> types = ir::TupleType::Cast(call.result()).fields();
  std::vector<int64_t> sizes;
  for (const ir::Type& type : types) sizes.push_back(SizeOf(type, axis));
  Interleaved layout(sizes, count);
  ffi::Array<int64_t> ends;
  for (int64_t size : sizes) ends.push_back((ends.empty() ? 0 : ends.back()) + layout.Part(size));
  ends.pop_back();
  ir::Expr moved = w->Move(x, axis, layout.total(), layout.FromConcatenated());
  ir::Expr parts = w->Write(ir::make::kSplit, w->Reshape(moved, SplitShape(moved, axis, count)),
                            ends, int64_t(axis + 1));
  ffi::Array<ir::Expr> fields;
  for (size_t i = 0; i < types.size(); ++i) {
    const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(ir::TensorType::Cast(types[i]));
    ir::Expr even = w->Reshape(w->Field(parts, static_cast<int>(i)),
                               WithExtent(shape, axis, count * layout.Part(sizes[i])));
    fields.push_back(w->Resized(even, axis, sizes[i]));
  }
  return ir::MakeTuple(fields);
}

bool PadsZeros(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  return ir::attrs::kPadPadMode.Text(attrs) == "constant" &&
         ir::attrs::kPadPadValue(attrs).cast<double>() == 0;
}

// ---- the records

const Operators kMovement("indexing",
                          {"others", "", "axis, where an extent is one or unknown",
                           "axis: every shard gets the elements that it lacks"},
                          {Operator("relax.concat", Concat)
                               .TakesTuple()
                               .Decompose(DecomposeConcat)
                               .Pad(Padding::kDecomposed)
                               .Commutes(kMoving),
                           Operator("relax.flip", Flip)
                               .Decompose(DecomposeFlip)
                               .Pad(Padding::kDecomposed)
                               .Commutes(kMoving),
                           Operator("relax.split", Split)
                               .Decompose(DecomposeSplit)
                               .Pad(Padding::kDecomposed)
                               .Commutes(kMoving)});
const Operators kSlice(
    "indexing",
    {"dimensions that are not cut or padded", "", "others, where an extent is one or unknown",
     "others: every shard gets the elements that it lacks"},
    {Operator("relax.strided_slice", StridedSlice)
         .Decompose(DecomposeStridedSlice)
         .Pad(Padding::kDecomposed)
         .Commutes(kMovingFirst)
         .LocalAttrs(/*local_attrs=*/nullptr)
         .LocalArgs(LocalEnds),
     Operator("relax.nn.pad", Pad)
         .Decompose(DecomposePad)
         .Pad(Padding::kDecomposed)
         .Commutes(Commutation().Sum(In::kFirst).Mean(In::kFirst).If(PadsZeros))});

}  // namespace

}  // namespace distir::ops
