// Operators that cut, join or reverse along one dimension: every device receives the missing
// elements of its shard of the result, in one exchange.
#include "ops/movement.h"

#include <algorithm>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "ops/lookup.h"

namespace distir::ops {

namespace {

using mesh::Segment;

// ---- factor rules

/*! \brief Part of a whole from which on a piece is taken for the same thing: a sequence without its
 * first token, but not the queries of queries, keys and values. */
constexpr double kMostOfWhole = 7. / 8;

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

// ---- decompositions

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

}  // namespace

FactorRule SameRank(const OpView& view, const std::vector<bool>& mask, Along along,
                    const std::vector<double>& elements) {
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

int64_t SizeOf(const ir::Type& type, int dim) {
  return ir::StaticDim(ir::ShapeOf(ir::TensorType::Cast(type))[dim]);
}
int64_t SizeOf(const ir::Expr& x, int dim) { return SizeOf(TensorTypeOf(x), dim); }

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

bool IsShort(const DecomposedCall& call, size_t result, int dim) {
  return call.sharding.results[result].dims[dim] != call.sharding.operands[0].dims[dim];
}

}  // namespace distir::ops
