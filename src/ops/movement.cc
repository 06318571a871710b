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
#include "ops/lookup.h"

namespace distir::ops {

namespace {

// ---- factor rules

constexpr DLDataType kInt8{kDLInt, 8, 1};
constexpr double kAllElements = std::numeric_limits<double>::infinity();

/*! \brief Part of a whole from which on a piece is taken for the same thing: a sequence without its
 * first token, but not the queries of queries, keys and values. */
constexpr double kMostOfWhole = 7. / 8;

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

/*! \brief The rule of a tensor split into pieces, or joined from them, along an axis. If one of
 * them is nearly all, as a sequence is behind a token, they are one thing; it moves by the others.
 */
FactorRule OfPieces(const OpView& view, const ffi::Any& axis,
                    const std::vector<ir::TensorType>& pieces) {
  std::vector<bool> mask = AxisMask(axis, ShardableRank(view.operands[0]));
  if (mask.empty()) return ReplicateAll(view);
  const int dim = Marked(mask)[0];
  int64_t total = 0, largest = 0;
  for (const ir::TensorType& piece : pieces) {
    const int64_t extent = StaticSizes(piece)[dim];
    total += extent;
    largest = std::max(largest, extent);
  }
  const double size = static_cast<double>(total), main = static_cast<double>(largest);
  const std::vector<double> elements(mask.size(), size - main);
  return SameRank(view, mask, main < kMostOfWhole * size ? Along::kMovedIfUsed : Along::kMoved,
                  elements);
}

// -1 where the rank is unknown.
int ConcatDim(const OpView& view) {
  const ffi::Any axis = ir::attrs::kConcatAxis(view.call.attrs());
  const int rank = view.operands.empty() ? 0 : ShardableRank(view.operands[0]);
  const std::vector<int> dims = Marked(AxisMask(axis, rank));
  return dims.empty() ? -1 : dims[0];
}

FactorRule Concat(const OpView& view) {
  if (view.operands.empty()) return ReplicateAll(view);
  return OfPieces(view, ir::attrs::kConcatAxis(view.call.attrs()), view.operands);
}

FactorRule Split(const OpView& view) {
  return OfPieces(view, ir::attrs::kSplitAxis(view.call.attrs()), view.results);
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

/*! \brief True if axes, begins and strides of a slice are numbers. */
bool HasKnownPlace(const OpView& view) {
  const ir::NodeArray<ir::Expr>& args = view.call.args();
  return IntegersOf(args[1]) && IntegersOf(args[2]) && (args.size() < 5 || IntegersOf(args[4]));
}

FactorRule StridedSlice(const OpView& view) {
  if (!ir::HasKnownShape(view.operands[0]) || !ir::HasKnownShape(view.results[0]))
    return ReplicateAll(view);
  if (!HasKnownPlace(view)) return SameRank(view, CutDims(view), Along::kWhole);
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

/*! \brief A segment that is shorter than there are shards: every device adds what it has to a
 * replicated one. */
ir::Expr LookUpSegment(const ir::Expr& x, int dim, const Segment& segment, Writer* w) {
  const DLDataType dtype = DtypeOf(x);
  const bool is_bool = dtype.code == kDLBool;
  auto scalar = [w](int64_t value) { return w->Scalar(static_cast<double>(value), kInt64); };
  ir::Expr positions = w->Range(ir::MakeInt(segment.count), {});
  if (segment.step != 1) positions = w->Write(ir::make::kMultiply, positions, scalar(segment.step));
  positions = w->Write(ir::make::kAdd, positions, scalar(segment.source));
  const mesh::AxisList axes = w->ShardingOf(x).dims[dim];
  return w->Cast(LookUpRows(is_bool ? w->Cast(x, kInt8) : x, positions, dim, axes, w), dtype);
}

/*! \brief True if a result has fewer elements along a dimension than the operand has shards. */
bool IsShort(const DecomposedCall& call, size_t result, int dim) {
  return call.sharding.results[result].dims[dim] != call.sharding.operands[0].dims[dim];
}

std::optional<Movement> FlipMovement(const OpView& view) {
  const ffi::Any axis = ir::attrs::kFlipAxis(view.call.attrs());
  const std::vector<int> dims = Marked(AxisMask(axis, ShardableRank(view.operands[0])));
  if (dims.size() != 1) return std::nullopt;
  const int64_t size = StaticSizes(view.operands[0])[dims[0]];
  if (size <= 0) return std::nullopt;
  return Movement{dims[0], {{size - 1, 0, -1, size}}};
}

ir::Expr DecomposeFlip(const DecomposedCall& call, Writer* w) {
  const OpView view = ViewCall(call.call, call.result());
  const Movement movement = *FlipMovement(view);
  return w->Move(call.arg(0), movement.dim, movement.segments[0].count, movement.segments);
}

/*! \brief The elements that a slice of known place takes along its axis number `i`. */
Segment SliceSegment(const ir::Call& call, size_t i, int64_t size, int64_t sliced) {
  const int64_t begin = (*IntegersOf(call.args()[2]))[i];
  const int64_t stride = call.args().size() > 4 ? (*IntegersOf(call.args()[4]))[i] : 1;
  // Of what is not empty.
  return {std::clamp<int64_t>(begin < 0 ? begin + size : begin, 0, size - 1), 0, stride, sliced};
}

std::optional<Movement> SliceMovement(const OpView& view) {
  if (!HasKnownPlace(view)) return std::nullopt;
  const std::vector<int> cut = Marked(CutDims(view));
  if (cut.size() != 1) return std::nullopt;
  const int64_t size = StaticSizes(view.operands[0])[cut[0]];
  const int64_t sliced = StaticSizes(view.results[0])[cut[0]];
  if (size <= 0 || sliced <= 0) return std::nullopt;
  const std::vector<int64_t> axes = *IntegersOf(view.call.args()[1]);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (NormalizeAxis(axes[i], ShardableRank(view.operands[0])) == cut[0])
      return Movement{cut[0], {SliceSegment(view.call, i, size, sliced)}};
  }
  return std::nullopt;
}

// Slices along replicated dimensions come first, and those that few elements are left of, so that
// less is moved.
ir::Expr DecomposeStridedSlice(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  const ir::NodeArray<ir::Expr>& args = call.call.args();
  const std::vector<int64_t> axes = *IntegersOf(args[1]);
  ffi::Array<ir::Expr> rest[4];  // axes, begins, ends, strides
  std::vector<std::pair<int, Segment>> moved;
  for (size_t i = 0; i < axes.size(); ++i) {
    int dim = NormalizeAxis(axes[i], RankOf(x));
    if (call.IsDecomposed(0, dim)) {
      moved.push_back(
          {dim, SliceSegment(call.call, i, SizeOf(x, dim), SizeOf(call.result(), dim))});
      continue;
    }
    const ir::Expr stride =
        args.size() > 4 ? ir::Tuple::Cast(args[4]).fields()[i] : ir::Expr(ir::MakeInt(1));
    const ir::Expr values[] = {ir::MakeInt(dim), ir::Tuple::Cast(args[2]).fields()[i],
                               ir::Tuple::Cast(args[3]).fields()[i], stride};
    for (int k = 0; k < 4; ++k) rest[k].push_back(values[k]);
  }
  if (!rest[0].empty()) {
    x = w->Write(ir::make::kStridedSlice, x, ir::MakeTuple(rest[0]), ir::MakeTuple(rest[1]),
                 ir::MakeTuple(rest[2]), ir::MakeTuple(rest[3]), false);
  }
  auto is_short = [&call](int dim) { return IsShort(call, 0, dim); };
  std::stable_partition(moved.begin(), moved.end(),
                        [&](const auto& each) { return is_short(each.first); });
  for (const auto& [dim, segment] : moved) {
    x = is_short(dim) ? LookUpSegment(x, dim, segment, w)
                      : w->Move(x, dim, segment.count, {segment});
  }
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

/*! \brief A shape with another extent of one dimension. */
ffi::Array<ir::Expr> WithExtent(ffi::Array<ir::Expr> shape, int dim, int64_t extent) {
  shape.Set(dim, ir::MakeInt(extent));
  return shape;
}

/*! \brief Elements along a dimension in each shard, but for the last ones. */
int64_t PerShard(int64_t size, int64_t shards) { return mesh::EvenExtent(size, shards) / shards; }

/*! \brief A tensor that is joined: its part in each block, where each block has the parts of all
 * tensors one behind the other. A replicated tensor is a part of every block. */
struct Joined {
  ir::Expr x;
  bool is_sharded;
  int64_t part;    // elements in a block
  int64_t at = 0;  // of its part in a block
};

/*! \brief Adds the segments from blocks to the result for one from a joined tensor.
 * \param block, result_block Extents of a block, and of a shard of the result. */
void AddFromBlocks(const Joined& joined, Segment segment, int64_t block, int64_t result_block,
                   std::vector<Segment>* segments) {
  while (segment.count > 0) {
    // A replicated tensor is read where the result is.
    const int64_t shard = joined.is_sharded ? segment.source / joined.part  //
                                            : segment.target / result_block;
    const int64_t begin = joined.is_sharded ? shard * joined.part : 0;
    int64_t count = segment.count;
    if (!joined.is_sharded) {
      count = std::min(count, (shard + 1) * result_block - segment.target);
    } else if (segment.step > 0) {
      count = std::min(count, (begin + joined.part - 1 - segment.source) / segment.step + 1);
    } else if (segment.step < 0) {
      count = std::min(count, (segment.source - begin) / -segment.step + 1);
    }
    segments->push_back(
        {shard * block + joined.at + segment.source - begin, segment.target, segment.step, count});
    segment = {segment.source + count * segment.step, segment.target + count, segment.step,
               segment.count - count};
  }
}

/*! \brief (.., n, ..) to (.., shards, n, ..), a copy in each shard. */
ir::Expr Copied(const ir::Expr& x, int dim, const mesh::AxisList& axes, Writer* w) {
  ir::Expr copy = w->ExpandDims(x, {dim});
  ir::Expr always = w->Write(ir::make::kGreaterEqual, w->ShardIndex(axes, dim, RankOf(copy)),
                             w->Scalar(0, kInt64));
  return w->Write(ir::make::kWhere, always, copy, copy);
}

ir::Expr DecomposeConcat(const DecomposedCall& call, Writer* w) {
  const int dim = ConcatDim(ViewCall(call.call, call.result()));
  const mesh::AxisList& axes = call.sharding.results[0].dims[dim];
  const int64_t shards = mesh::NumShards(axes), size = SizeOf(call.result(), dim);
  const ffi::Array<ir::Expr> operands = ir::Tuple::Cast(call.arg(0)).fields();
  std::vector<Joined> joined;
  std::vector<std::pair<size_t, Segment>> moved;  // from which of them
  int64_t end = 0, block = 0;
  for (size_t i = 0; i < call.parts.size(); ++i) {
    const ir::Expr& x = operands[i];
    size_t from = 0;
    while (from < joined.size() && !joined[from].x.same_as(x)) ++from;
    if (from == joined.size()) {
      const bool is_sharded = !w->ShardingOf(x).dims[dim].empty();
      const int64_t part = is_sharded ? PerShard(SizeOf(x, dim), shards) : SizeOf(x, dim);
      joined.push_back({x, is_sharded, part, block});
      block += part;
    }
    const int64_t begin = end;
    for (Segment segment : call.parts[i]) {
      end += segment.count;
      segment.target += begin;
      moved.push_back({from, segment});
    }
  }
  std::vector<Segment> segments;
  if (joined.size() == 1 && joined[0].is_sharded) {
    for (const auto& [from, segment] : moved) segments.push_back(segment);
    return w->Move(joined[0].x, dim, size, segments);
  }
  if (std::none_of(joined.begin(), joined.end(), [](const Joined& x) { return x.is_sharded; }))
    return w->Write(ir::make::kConcat, call.arg(0), int64_t(dim));
  ffi::Array<ir::Expr> blocks;
  for (const Joined& each : joined) {
    ir::Expr even = each.is_sharded ? w->Even(each.x, dim) : each.x;
    blocks.push_back(each.is_sharded ? w->Reshape(even, SplitShape(even, dim, shards))
                                     : Copied(each.x, dim, axes, w));
  }
  for (const auto& [from, segment] : moved)
    AddFromBlocks(joined[from], segment, block, PerShard(size, shards), &segments);
  ir::Expr all = w->Write(ir::make::kConcat, ir::MakeTuple(blocks), int64_t(dim + 1));
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(ir::TensorType::Cast(call.result()));
  return w->Move(w->Reshape(all, WithExtent(shape, dim, shards * block)), dim, size, segments);
}

// The shards of the long pieces are laid out one behind the other in each block, so that they are
// split without anything sent.
ir::Expr DecomposeSplit(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  const int axis = Marked(AxisMask(ir::attrs::kSplitAxis(call.attrs()), RankOf(x)))[0];
  const int64_t shards = mesh::NumShards(call.DecomposedAxes());
  const ffi::Array<ir::Type> types = ir::TupleType::Cast(call.result()).fields();
  ffi::Array<ir::Expr> fields;
  std::vector<size_t> split;                        // the pieces that are sharded
  std::vector<std::pair<int64_t, int64_t>> pieces;  // their begin and size
  ffi::Array<int64_t> ends;                         // of their parts in a block
  int64_t begin = 0, block = 0;
  for (size_t i = 0; i < types.size(); ++i) {
    const int64_t size = SizeOf(types[i], axis);
    if (IsShort(call, i, axis)) {
      fields.push_back(LookUpSegment(x, axis, {begin, 0, 1, size}, w));
    } else {
      fields.push_back(x);  // for now
      split.push_back(i);
      pieces.emplace_back(begin, size);
      block += PerShard(size, shards);
      ends.push_back(block);
    }
    begin += size;
  }
  if (split.empty()) return ir::MakeTuple(fields);
  std::vector<Segment> segments;
  for (int64_t s = 0; s < shards; ++s) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto [first, size] = pieces[i];
      const int64_t part = PerShard(size, shards), count = std::min(part, size - s * part);
      if (count > 0) segments.push_back({first + s * part, s * block + ends[i] - part, 1, count});
    }
  }
  ir::Expr moved = w->Move(x, axis, shards * block, segments);
  if (split.size() == 1) {
    fields.Set(split[0], w->Resized(moved, axis, pieces[0].second));
    return ir::MakeTuple(fields);
  }
  ends.pop_back();
  ir::Expr parts = w->Write(ir::make::kSplit, w->Reshape(moved, SplitShape(moved, axis, shards)),
                            ends, int64_t(axis + 1));
  for (size_t i = 0; i < split.size(); ++i) {
    const int64_t size = pieces[i].second;
    const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(ir::TensorType::Cast(types[split[i]]));
    const ir::Expr part = w->Field(parts, static_cast<int>(i));
    ir::Expr even = w->Reshape(part, WithExtent(shape, axis, shards * PerShard(size, shards)));
    fields.Set(split[i], w->Resized(even, axis, size));
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
                          {"others", "", "axis, where an extent is unknown",
                           "axis: every shard gets the elements that it lacks; operands of fewer "
                           "elements than shards are replicated, results take the first axes that "
                           "they have elements for, or none"},
                          {Operator("relax.concat", Concat)
                               .Joins(ConcatDim)
                               .Decompose(DecomposeConcat)
                               .Pad(Padding::kDecomposed)
                               .Commutes(kMoving),
                           Operator("relax.flip", Flip)
                               .Decompose(DecomposeFlip)
                               .Moves(FlipMovement)
                               .Pad(Padding::kDecomposed)
                               .Commutes(kMoving),
                           Operator("relax.split", Split)
                               .Decompose(DecomposeSplit)
                               .Pad(Padding::kDecomposed)
                               .Commutes(kMoving)});
const Operators kSlice(
    "indexing",
    {"dimensions that are not cut or padded", "", "others, where an extent is unknown",
     "others: every shard gets the elements that it lacks; a slice of fewer elements than shards "
     "takes the first axes that it has elements for, or none"},
    {Operator("relax.strided_slice", StridedSlice)
         .Decompose(DecomposeStridedSlice)
         .Moves(SliceMovement)
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
