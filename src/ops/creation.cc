// Operators whose elements are constants or follow from their positions: tensors made from sizes,
// one-hot vectors, triangles. Along factors that only results have, each device makes its own shard
// if the result is needed in shards (decompose/creation.h).
// Values that follow from positions in the whole tensor, or from nothing: every device makes those
// of its shard.
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tir_node.h"
#include "ops/family.h"
#include "rules/factor/broadcasting.h"
#include "support/dtypes.h"

namespace distir::ops {

namespace {

// ---- factor rules

/*! \brief All dimensions of the result, and those of operands of its rank, in one kind of factor.
 */
FactorRule AllOf(const OpView& view, const FactorKind& kind) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.results[0]);
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    int factor = builder.Add({sizes[d], kind});
    builder.Result(0, d, factor);
    if (!view.operands.empty() && ShardableRank(view.operands[0]) == ShardableRank(view.results[0]))
      builder.Operand(0, d, factor);
  }
  return builder.Finish();
}

bool IsNumber(const ir::Expr& expr) { return ir::IntImm::Is(expr) || ir::FloatImm::Is(expr); }

/*! \brief True if the result's size and all arguments but the tensors are numbers. */
bool IsKnown(const OpView& view) {
  for (int64_t size : StaticSizes(view.results[0])) {
    if (size < 0) return false;
  }
  for (const ir::Expr& arg : view.call.args()) {
    if (ir::PrimType::Is(arg.ty()) && !IsNumber(arg)) return false;
  }
  return true;
}

FactorRule Filled(const OpView& view) { return AllOf(view, ParallelFactor()); }

FactorRule ByPosition(const OpView& view) { return AllOf(view, DecomposedIf(IsKnown(view))); }

// The two values are numbers.
FactorRule OneHot(const OpView& view) {
  Sizes indices = StaticSizes(view.operands[0]);
  Sizes result = StaticSizes(view.results[0]);
  int axis = NormalizeAxis(ir::attrs::kOneHotAxis.Int(view.call.attrs(), -1),
                           static_cast<int>(result.size()));
  RuleBuilder builder(view);
  for (int d = 0; d < static_cast<int>(indices.size()); ++d) {
    int factor = builder.Parallel(indices[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d < axis ? d : d + 1, factor);
  }
  builder.Result(0, axis, builder.Decomposed(result[axis]));
  return builder.Finish();
}

FactorRule Triangle(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  const FactorKind kind = DecomposedIf(IsNumber(view.call.args()[1]));
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    int factor = d < rank - 2 ? builder.Parallel(sizes[d]) : builder.Add({sizes[d], kind});
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

bool HasSizesOf(const OpView& a, const OpView& b) {
  return StaticSizes(a.results[0]) == StaticSizes(b.results[0]);
}

// The end of a range of another number of elements; between two of them where they are floats.
ffi::Array<ir::Expr> LocalRange(const OpView& global, const OpView& local) {
  ffi::Array<ir::Expr> args = local.call.args();
  if (HasSizesOf(global, local) || !IsNumber(args[0]) || !IsNumber(args[2])) return args;
  int64_t size = StaticSizes(local.results[0])[0];
  if (ir::IntImm::Is(args[0]) && ir::IntImm::Is(args[2])) {
    int64_t start = ir::IntImm::Cast(args[0]).value(), step = ir::IntImm::Cast(args[2]).value();
    args.Set(1, ir::MakeInt(start + step * size));
    return args;
  }
  auto number = [](const ir::Expr& expr) {
    return ir::IntImm::Is(expr) ? static_cast<double>(ir::IntImm::Cast(expr).value())
                                : ir::FloatImm::Cast(expr).value();
  };
  double length = static_cast<double>(size) - 0.5;
  args.Set(1, ir::MakeFloat(number(args[0]) + number(args[2]) * length));
  return args;
}

ffi::Array<ir::Expr> LocalRowsAndColumns(const OpView& global, const OpView& local) {
  ffi::Array<ir::Expr> args = local.call.args();
  if (HasSizesOf(global, local)) return args;
  Sizes sizes = StaticSizes(local.results[0]);
  return {ir::MakeInt(sizes[0]), ir::MakeInt(sizes[1]), args[2]};
}

ir::Node LocalDepth(const OpView& global, const OpView& local) {
  const ir::Node& attrs = global.call.attrs();
  Sizes sizes = StaticSizes(local.results[0]);
  int64_t depth =
      sizes[NormalizeAxis(ir::attrs::kOneHotAxis.Int(attrs, -1), static_cast<int>(sizes.size()))];
  return HasSizesOf(global, local) ? attrs : ir::WithField(attrs, "depth", depth);
}

// ---- decompositions

constexpr double kTwoPi = 6.283185307179586;

int64_t IntOf(const ir::Expr& number) { return ir::IntImm::Cast(number).value(); }

/*! \brief A number of the call as a scalar of this type. */
ir::Expr ScalarOf(const ir::Expr& number, DLDataType dtype, Writer* w) {
  return w->Scalar(ir::IntImm::Is(number) ? static_cast<double>(IntOf(number))
                                          : ir::FloatImm::Cast(number).value(),
                   dtype);
}

/*! \brief Positions along a dimension of the result, which broadcast to it. */
ir::Expr PositionsAlong(const DecomposedCall& call, int dim, Writer* w) {
  int rank = static_cast<int>(call.sharding.results[0].dims.size());
  const ir::Expr& size = ir::ShapeOf(TensorTypeOf(call.call))[dim];
  ir::Expr positions = w->Positions(call.sharding.results[0].dims[dim], size);
  std::vector<int> behind;
  for (int d = dim + 1; d < rank; ++d) behind.push_back(d - dim);
  return w->ExpandDims(positions, behind);
}

ir::Expr DecomposeArange(const DecomposedCall& call, Writer* w) {
  const ir::Expr &start = call.arg(0), &step = call.arg(2);
  bool is_integer = ir::IntImm::Is(start) && ir::IntImm::Is(call.arg(1)) && ir::IntImm::Is(step);
  DLDataType within = is_integer ? kInt64 : kFloat64;
  ir::Expr positions = w->Cast(PositionsAlong(call, 0, w), within);
  ir::Expr steps = w->Write(ir::make::kMultiply, positions, ScalarOf(step, within, w));
  return w->Cast(w->Write(ir::make::kAdd, steps, ScalarOf(start, within, w)), DtypeOf(call.call));
}

// alpha - beta * cos(2 pi n / (N - 1)); a periodic window is one of another element more, without
// its last one.
ir::Expr DecomposeHammingWindow(const DecomposedCall& call, Writer* w) {
  int64_t size = IntOf(call.arg(0)) + (IntOf(call.arg(1)) != 0 ? 1 : 0);
  DLDataType dtype = DtypeOf(call.call);
  ir::Expr positions = w->Cast(PositionsAlong(call, 0, w), dtype);
  double turn = size > 1 ? kTwoPi / static_cast<double>(size - 1) : 0;
  ir::Expr wave =
      w->Write(ir::make::kCos, w->Write(ir::make::kMultiply, positions, w->Scalar(turn, dtype)));
  ir::Expr scaled = w->Write(ir::make::kMultiply, wave, ScalarOf(call.arg(3), dtype, w));
  return w->Write(ir::make::kSubtract, ScalarOf(call.arg(2), dtype, w), scaled);
}

/*! \brief The positions of the last dimension at which each row has the diagonal `k`, and those of
 * the last dimension. */
std::pair<ir::Expr, ir::Expr> Diagonal(const DecomposedCall& call, const ir::Expr& k, Writer* w) {
  int rank = static_cast<int>(call.sharding.results[0].dims.size());
  ir::Expr rows = PositionsAlong(call, rank - 2, w);
  return {w->Write(ir::make::kAdd, rows, ScalarOf(k, kInt64, w)),
          PositionsAlong(call, rank - 1, w)};
}

template <int argument>
ir::Expr DecomposeEye(const DecomposedCall& call, Writer* w) {
  auto [diagonal, columns] = Diagonal(call, call.arg(argument), w);
  return w->Cast(w->Write(ir::make::kEqual, diagonal, columns), DtypeOf(call.call));
}

template <const ir::GlobalFunction* keeps>
ir::Expr DecomposeTriangle(const DecomposedCall& call, Writer* w) {
  auto [diagonal, columns] = Diagonal(call, call.arg(1), w);
  ir::Expr x = call.arg(0);
  return w->Write(ir::make::kWhere, w->Write(*keeps, columns, diagonal), x,
                  w->Scalar(0, DtypeOf(x)));
}

ir::Expr DecomposeOneHot(const DecomposedCall& call, Writer* w) {
  ir::Expr indices = call.arg(0);
  int axis = NormalizeAxis(ir::attrs::kOneHotAxis.Int(call.attrs(), -1), RankOf(indices) + 1);
  ir::Expr classes = w->Cast(PositionsAlong(call, axis, w), DtypeOf(indices));
  ir::Expr is_on = w->Write(ir::make::kEqual, w->ExpandDims(indices, {axis}), classes);
  DLDataType dtype = DtypeOf(call.call);
  return w->Write(ir::make::kWhere, is_on, ScalarOf(call.arg(1), dtype, w),
                  ScalarOf(call.arg(2), dtype, w));
}

// Along every dimension that is made, the value is copied to each shard, which is a dimension of
// its own, and there to all positions.
ir::Expr Broadcast(const DecomposedCall& call, const ir::Expr& value, Writer* w) {
  const mesh::Sharding& sharding = call.sharding.results[0];
  const ir::NodeArray<ir::Expr>& whole = ir::ShapeOf(TensorTypeOf(call.call));
  int rank = static_cast<int>(whole.size()), operand_rank = RankOf(value);
  ffi::Array<ir::Expr> split;
  std::vector<int> shards, new_dims;  // dimensions of shards; of these, within what `value` has
  for (int d = 0; d < rank; ++d) {
    const rules::FactorList& factors = call.rule.results[0][d];
    int own = d - (rank - operand_rank);  // the operand's dimension, if there is one
    bool has_factor = own >= 0 && !call.rule.operands.empty() &&
                      !call.rule.operands[0][own].empty() &&
                      call.rule.operands[0][own][0] == factors[0];
    if (has_factor || sharding.dims[d].empty()) {
      split.push_back(whole[d]);
      continue;
    }
    int64_t count = mesh::NumShards(sharding.dims[d]);
    shards.push_back(static_cast<int>(split.size()));
    if (own >= 0) new_dims.push_back(own + static_cast<int>(new_dims.size()));
    split.push_back(ir::MakeInt(count));
    split.push_back(ir::FloorDivide(whole[d], count));
  }
  ir::Expr made = w->ExpandDims(value, new_dims);
  size_t next = 0;
  for (int d = 0; d < rank && next < shards.size(); ++d) {
    if (shards[next] != d + static_cast<int>(next)) continue;
    ir::Expr index = w->ShardIndex(sharding.dims[d], shards[next], static_cast<int>(split.size()));
    made = w->Write(ir::make::kWhere, w->Cast(index, kBool), made, made);
    ++next;
  }
  return w->Reshape(w->Write(ir::make::kBroadcastTo, made, ir::Expr(ir::MakeShape(split))), whole);
}

template <int value>
ir::Expr DecomposeFilled(const DecomposedCall& call, Writer* w) {
  return Broadcast(call, w->Scalar(value, DtypeOf(call.call)), w);
}

ir::Expr DecomposeFull(const DecomposedCall& call, Writer* w) {
  return Broadcast(call, w->Cast(call.arg(1), DtypeOf(call.call)), w);
}

ir::Expr DecomposeBroadcastTo(const DecomposedCall& call, Writer* w) {
  return Broadcast(call, call.arg(0), w);
}

// ---- the records

const Operators kFilled("create", {"all, made in pieces"},
                        {Operator("relax.full", Filled)
                             .Decompose(DecomposeFull)
                             .Pad(Padding::kParallel)
                             .ShapeArgument(0),
                         Operator("relax.ones", Filled)
                             .Decompose(DecomposeFilled<1>)
                             .Pad(Padding::kParallel)
                             .ShapeArgument(0),
                         Operator("relax.zeros", Filled)
                             .Decompose(DecomposeFilled<0>)
                             .Pad(Padding::kParallel)
                             .ShapeArgument(0)});
const Operators kRange(
    "create", {"", "", "", "all of a known size: every shard is made from its positions"},
    {Operator("relax.arange", ByPosition)
         .Decompose(DecomposeArange)
         .Pad(Padding::kPositions)
         .LocalArgs(LocalRange),
     Operator("relax.eye", ByPosition)
         .Decompose(DecomposeEye<2>)
         .Pad(Padding::kPositions)
         .LocalArgs(LocalRowsAndColumns),
     Operator("relax.eye_like", ByPosition).Decompose(DecomposeEye<1>).Pad(Padding::kPositions),
     Operator("relax.hamming_window", ByPosition).Decompose(DecomposeHammingWindow)});
const Operators kOneHot("indexing",
                        {"indices", "", "", "the new dimension: made from its positions"},
                        {Operator("relax.one_hot", OneHot)
                             .Decompose(DecomposeOneHot)
                             .Pad(Padding::kPositions)
                             .LocalAttrs(LocalDepth)});
const Operators kTriangle("indexing",
                          {"others", "", "", "the last two: kept or not by their positions"},
                          {Operator("relax.tril", Triangle)
                               .Decompose(DecomposeTriangle<&ir::make::kLessEqual>)
                               .Pad(Padding::kPositions),
                           Operator("relax.triu", Triangle)
                               .Decompose(DecomposeTriangle<&ir::make::kGreaterEqual>)
                               .Pad(Padding::kPositions)});

// The operands' values do not matter, but the local result must have the local shape of the
// operand.
const Operators kLike("create", {"all"},
                      {Operator("relax.full_like", rules::Broadcasting).Pad(Padding::kParallel),
                       Operator("relax.ones_like", rules::Broadcasting).Pad(Padding::kParallel),
                       Operator("relax.zeros_like", rules::Broadcasting).Pad(Padding::kParallel)});

const Operators kBroadcastTo("broadcast", {"all", "", "dimensions of size 1 that are broadcast"},
                             {Operator("relax.broadcast_to", rules::Broadcasting)
                                  .Decompose(DecomposeBroadcastTo)
                                  .Pad(Padding::kParallel)
                                  .Commutes(kMoving)
                                  .ShapeArgument(1)});

}  // namespace

}  // namespace distir::ops
