// Operators that move, split, merge, add or drop dimensions.
// Repetition of a sharded dimension: every device gets the elements of its shard that it lacks.
#include <numeric>
#include <unordered_map>

#include "ir/symbolic.h"
#include "ir/tvm/functions.h"
#include "ops/family.h"

namespace distir::ops {

namespace {

// ---- factor rules

FactorRule PermuteDims(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  auto axes = ReadAxes(ir::attrs::kPermuteDimsAxes(view.call.attrs()), rank);
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    int source = axes ? (*axes)[d] : rank - 1 - d;
    int factor = builder.Parallel(sizes[source]);
    builder.Operand(0, source, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

// Operand dimensions that `skip` does not name go, in order, to result dimensions that
// `skip_result` does not name.
FactorRule InOrder(const OpView& view, const std::vector<bool>& skip,
                   const std::vector<bool>& skip_result) {
  Sizes sizes = StaticSizes(view.operands[0]);
  RuleBuilder builder(view);
  size_t result_dim = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (skip[d]) continue;
    while (result_dim < skip_result.size() && skip_result[result_dim]) ++result_dim;
    if (result_dim >= skip_result.size()) break;
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, static_cast<int>(d), factor);
    builder.Result(0, static_cast<int>(result_dim++), factor);
  }
  return builder.Finish();
}

FactorRule ExpandDims(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  int result_rank = ShardableRank(view.results[0]);
  return InOrder(view, std::vector<bool>(rank, false),
                 AxisMask(ir::attrs::kExpandDimsAxis(view.call.attrs()), result_rank));
}

FactorRule Squeeze(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  auto axes = ReadAxes(ir::attrs::kSqueezeAxis(view.call.attrs()), rank);
  std::vector<bool> dropped(rank, false);
  for (int d = 0; d < rank; ++d) dropped[d] = !axes && sizes[d] == 1;
  if (axes) {
    for (int axis : *axes) dropped[axis] = true;
  }
  return InOrder(view, dropped, std::vector<bool>(ShardableRank(view.results[0]), false));
}

// Without axes, squeeze drops what has size 1, which on a worker may be a shard of a larger
// dimension.
ir::Node SqueezeGlobalAxes(const OpView& view, const OpView&) {
  Sizes sizes = StaticSizes(view.operands[0]);
  if (ReadAxes(ir::attrs::kSqueezeAxis(view.call.attrs()), static_cast<int>(sizes.size())))
    return view.call.attrs();
  ffi::Array<int64_t> axes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) axes.push_back(static_cast<int64_t>(d));
  }
  return ir::make::kSqueeze(view.call.args()[0], axes).cast<ir::Call>().attrs();
}

/*!
 * \brief Walks the dimensions of both shapes of a reshape from the major end and emits the factors
 * they share.
 *
 * Invariant: the elements before the current place are the same on both sides. Example (8, 4) to
 * (2, 16): 8 and 2 share 2, leaving 4 and 16; they share 4, leaving the operand's 4 and the
 * result's 4; they share 4.
 */
class ReshapeWalk {
 public:
  explicit ReshapeWalk(const OpView& view)
      : builder_(view), in_(ir::ShapeOf(view.operands[0])), out_(ir::ShapeOf(view.results[0])) {}

  FactorRule Run() {
    while (i_ < in_.size() && o_ < out_.size()) {
      if (in_rest_ == 0 && out_rest_ == 0 && ir::SameDim(in_[i_], out_[o_])) {
        int factor = builder_.Parallel(ir::StaticDim(in_[i_]));
        builder_.Operand(0, static_cast<int>(i_++), factor);
        builder_.Result(0, static_cast<int>(o_++), factor);
        continue;
      }
      if (!StepSymbolic() && !StepStatic()) break;  // the rest needs replication
    }
    return builder_.Finish();
  }

 private:
  // A symbolic dimension that equals the product of the next dimensions of the other side.
  bool StepSymbolic() {
    if (in_rest_ != 0 || out_rest_ != 0) return false;
    return MatchProduct(out_[o_], in_, i_, /*merge=*/true) ||
           MatchProduct(in_[i_], out_, o_, /*merge=*/false);
  }

  bool MatchProduct(const ir::Expr& whole, const ir::NodeArray<ir::Expr>& parts, size_t begin,
                    bool merge) {
    if (ir::StaticDim(whole) >= 0) return false;
    std::vector<ir::Expr> taken;
    for (size_t end = begin; end < parts.size(); ++end) {
      taken.push_back(parts[end]);
      if (taken.size() < 2 || !ir::SameDim(ir::Product(taken), whole)) continue;
      for (size_t k = begin; k <= end; ++k) {
        int factor = builder_.Parallel(ir::StaticDim(parts[k]));
        builder_.Operand(0, static_cast<int>(merge ? k : i_), factor);
        builder_.Result(0, static_cast<int>(merge ? o_ : k), factor);
      }
      i_ = merge ? end + 1 : i_ + 1;
      o_ = merge ? o_ + 1 : end + 1;
      return true;
    }
    return false;
  }

  bool StepStatic() {
    if (in_rest_ == 0) in_rest_ = ir::StaticDim(in_[i_]);
    if (out_rest_ == 0) out_rest_ = ir::StaticDim(out_[o_]);
    if (in_rest_ <= 0 || out_rest_ <= 0) return false;
    int64_t shared = std::gcd(in_rest_, out_rest_);
    bool aligned = shared == in_rest_ || shared == out_rest_;
    if (shared > 1) {
      int factor = builder_.Parallel(shared);
      builder_.Operand(0, static_cast<int>(i_), factor);
      builder_.Result(0, static_cast<int>(o_), factor);
    }
    in_rest_ /= shared;
    out_rest_ /= shared;
    if (!aligned) return Realign();
    if (in_rest_ == 1) AdvanceIn();
    if (out_rest_ == 1) AdvanceOut();
    return true;
  }

  // Sizes such as 2 and 3: no block of one is a block of the other; replicated until products agree
  // again.
  bool Realign() {
    int64_t in_product = in_rest_;
    int64_t out_product = out_rest_;
    while (in_product != out_product) {
      bool extend_in = in_product < out_product;
      size_t& position = extend_in ? i_ : o_;
      const ir::NodeArray<ir::Expr>& shape = extend_in ? in_ : out_;
      if (position + 1 >= shape.size()) return false;
      int64_t size = ir::StaticDim(shape[++position]);
      if (size < 0) return false;
      (extend_in ? in_product : out_product) *= size;
    }
    AdvanceIn();
    AdvanceOut();
    return true;
  }

  void AdvanceIn() {
    ++i_;
    in_rest_ = 0;
  }
  void AdvanceOut() {
    ++o_;
    out_rest_ = 0;
  }

  RuleBuilder builder_;
  ffi::Array<ir::Expr> in_, out_;
  size_t i_ = 0, o_ = 0;
  int64_t in_rest_ = 0, out_rest_ = 0;  // what is left of the current dimensions; 0: not begun
};

FactorRule Reshape(const OpView& view) {
  if (!ir::HasKnownShape(view.operands[0]) || !ir::HasKnownShape(view.results[0]))
    return ReplicateAll(view);
  return ReshapeWalk(view).Run();
}

// out[i] = in[i / repeats]: the repetition is the minor part of the result's dimension. Without an
// axis the operand is flattened first.
FactorRule Repeat(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  auto axes = ReadAxes(ir::attrs::kRepeatAxis(view.call.attrs()), rank);
  int repeated = axes ? (*axes)[0] : rank - 1;
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, axes ? d : 0, factor);
    if (d == repeated)
      builder.Result(0, axes ? d : 0,
                     builder.NeedsReplication(ir::attrs::kRepeatRepeats.Int(view.call.attrs(), 1)));
  }
  return builder.Finish();
}

// The global shape is known whatever the sharding.
FactorRule ShapeOf(const OpView& view) {
  if (!ir::HasKnownShape(view.operands[0])) return ReplicateAll(view);
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  for (size_t d = 0; d < sizes.size(); ++d) {
    builder.Operand(0, static_cast<int>(d), builder.Parallel(sizes[d]));
  }
  return builder.Finish();
}

// The new dimension has no factor.
FactorRule Stack(const OpView& view) {
  int rank = ShardableRank(view.results[0]);
  std::vector<bool> added = AxisMask(ir::attrs::kStackAxis(view.call.attrs()), rank);
  if (!ReadAxes(ir::attrs::kStackAxis(view.call.attrs()), rank))
    added.assign(rank, false), added[0] = true;
  Sizes sizes = StaticSizes(view.results[0]);
  RuleBuilder builder(view);
  int dim = 0;
  for (int d = 0; d < rank; ++d) {
    if (added[d]) continue;
    int factor = builder.Parallel(sizes[d]);
    builder.Result(0, d, factor);
    for (size_t i = 0; i < view.operands.size(); ++i) builder.Operand(i, dim, factor);
    ++dim;
  }
  return builder.Finish();
}

// out[i] = in[i % size]: shards of a repeated dimension are no blocks of the result, so that
// elements move.
FactorRule Tile(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  int added = ShardableRank(view.results[0]) - rank;
  Sizes sizes = StaticSizes(view.operands[0]);
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    const bool is_repeated = !SameSize(view.operands[0], d, view.results[0], d + added);
    if (is_repeated && sizes[d] <= 1) continue;
    int factor = is_repeated ? builder.Decomposed(sizes[d], Exchanged::kMoved, 1)
                             : builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d + added, factor);
  }
  return builder.Finish();
}

FactorRule Meshgrid(const OpView& view) {
  // Of "xy" TVM's type inference and its computation differ.
  if (ir::attrs::kMeshgridIndexing.Text(view.call.attrs()) == "xy") return ReplicateAll(view);
  RuleBuilder builder(view);
  for (size_t i = 0; i < view.operands.size(); ++i) {
    int factor = builder.Parallel(StaticSizes(view.results[0])[i]);
    if (ShardableRank(view.operands[i]) == 1) builder.Operand(i, 0, factor);
    for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, static_cast<int>(i), factor);
  }
  return builder.Finish();
}

// The inverse of broadcasting: what was stretched is summed.
FactorRule CollapseSum(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  Sizes target = StaticSizes(view.results[0]);
  int added = static_cast<int>(sizes.size() - target.size());
  RuleBuilder builder(view);
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    int kept = d - added;
    if (kept >= 0 && SameSize(view.operands[0], d, view.results[0], kept)) {
      int factor = builder.Parallel(sizes[d]);
      builder.Operand(0, d, factor);
      builder.Result(0, kept, factor);
      if (view.operands.size() > 1) builder.Operand(1, kept, factor);
    } else if (kept < 0 || target[kept] == 1) {
      builder.Operand(0, d, builder.Reduce(sizes[d], mesh::Reduction::kSum));
    }
  }
  return builder.Finish();
}

// A result dimension that is an operand dimension, which no other result dimension uses.
FactorRule LayoutTransform(const OpView& view) {
  ffi::ObjectRef map =
      ir::attrs::kLayoutTransformIndexMap(view.call.attrs()).cast<ffi::ObjectRef>();
  const ir::NodeArray<ir::Expr>& from = ir::fields::kInitialIndices(map);
  const ir::NodeArray<ir::Expr>& to = ir::fields::kFinalIndices(map);
  std::unordered_map<const ffi::Object*, int> uses;
  for (const ir::Expr& index : to) {
    ir::VisitVars(index, [&uses](const ir::Var& var) { ++uses[var.get()]; });
  }
  Sizes sizes = StaticSizes(view.operands[0]);
  RuleBuilder builder(view);
  for (size_t d = 0; d < sizes.size(); ++d) {
    for (size_t r = 0; r < to.size(); ++r) {
      if (!to[r].same_as(from[d]) || uses[from[d].get()] != 1) continue;
      int factor = builder.Parallel(sizes[d]);
      builder.Operand(0, static_cast<int>(d), factor);
      builder.Result(0, static_cast<int>(r), factor);
    }
  }
  return builder.Finish();
}

// ---- decompositions

ir::Expr DecomposeTile(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  const auto stated = ir::attrs::kTileRepeats(call.attrs()).cast<ffi::Array<int64_t>>();
  const int rank = static_cast<int>(call.sharding.results[0].dims.size());
  const int added = rank - RankOf(x);
  std::vector<int64_t> repeats(rank - stated.size(), 1);
  repeats.insert(repeats.end(), stated.begin(), stated.end());
  bool any_left = added > 0;
  for (int d = 0; d < RankOf(x); ++d) {
    int64_t& times = repeats[d + added];
    if (!call.IsDecomposed(0, d)) {
      any_left = any_left || times != 1;
      continue;
    }
    const int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[d]);
    std::vector<mesh::Segment> segments;
    for (int64_t i = 0; i < times; ++i) segments.push_back({0, i * size, 1, size});
    x = w->Move(x, d, times * size, segments);
    times = 1;
  }
  return any_left
             ? w->Write(ir::make::kTile, x, ffi::Array<int64_t>(repeats.begin(), repeats.end()))
             : x;
}

// ---- the records

const Operators kMoved(
    "shape", {"all"},
    {Operator("relax.expand_dims", ExpandDims)
         .Pad(Padding::kAll)
         .KeepsZeros()
         .IsView()
         .Commutes(kMoving),
     Operator("relax.meshgrid", Meshgrid).TakesTuple().Pad(Padding::kAll),
     Operator("relax.permute_dims", PermuteDims).Pad(Padding::kAll).KeepsZeros().Commutes(kMoving),
     Operator("relax.squeeze", Squeeze)
         .Pad(Padding::kAll)
         .KeepsZeros()
         .IsView()
         .Commutes(kMoving)
         .LocalAttrs(SqueezeGlobalAxes)});
const Operators kSplitAndMerged(
    "shape", {"all, split and merged where blocks stay blocks", "", "the rest"},
    {Operator("relax.flatten", Reshape).Pad(Padding::kAll).PadGrains().IsView(),
     Operator("relax.nn.batch_flatten", Reshape).Pad(Padding::kAll).PadGrains().IsView(),
     Operator("relax.reshape", Reshape)
         .Pad(Padding::kAll)
         .PadGrains()
         .KeepsZeros()
         .IsView()
         .Commutes(kMoving)
         .ShapeArgument(1)});
const Operators kStack(
    "shape", {"all", "", "the new dimension"},
    {Operator("relax.stack", Stack).TakesTuple().Pad(Padding::kAll).Commutes(kMoving)});
const Operators kRepeat(
    "shape", {"all", "", "the repetition"},
    {Operator("relax.repeat", Repeat).Pad(Padding::kAll).PadGrains().Commutes(kMoving)});
const Operators kTile("shape",
                      {"others", "", "repeated dimensions of unknown sizes",
                       "repeated dimensions: every shard gets the elements that it lacks"},
                      {Operator("relax.tile", Tile)
                           .Decompose(DecomposeTile)
                           .Pad(Padding::kDecomposed)
                           .Commutes(kMoving)});
const Operators kLayout(
    "shape", {"dimensions that stay as they are", "", "others"},
    {Operator("relax.layout_transform", LayoutTransform).Pad(Padding::kParallel)});
const Operators kCollapse(
    "shape", {"others", "summed dimensions: sum"},
    {Operator("relax.collapse_sum_like", CollapseSum).Adds(Accumulation::kSums).Pad(Padding::kAll),
     Operator("relax.collapse_sum_to", CollapseSum)
         .Adds(Accumulation::kSums)
         .Pad(Padding::kAll)
         .ShapeArgument(1)});
const Operators kShapeOf("shape", {"all", "", "", "the global shape, known on every device"},
                         {Operator("relax.shape_of", ShapeOf).Pad(Padding::kParallel)});

}  // namespace

}  // namespace distir::ops
