// Slices and pads: every device receives the missing elements of its shard of the result, in one
// exchange; short slices, such as the last token, are summed over devices.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "ir/build.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "ir/tir_node.h"
#include "ops/lookup.h"
#include "ops/movement.h"

namespace distir::ops {

namespace {

using mesh::Segment;

// ---- factor rules

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

/*! \brief A slice of few elements of a dimension of unknown extent. */
struct FewOfUnknown {
  size_t index;               // of the dimension among the slice's axes
  int64_t count;              // at most
  ir::Expr begin;             // the first; one before all others counts as the first of them
  bool may_be_fewer = false;  // as x[:, -2:] of one element
};

std::optional<int64_t> NumberOf(const ir::Expr& size) {
  return ir::IntImm::Is(size) ? std::optional(ir::IntImm::Cast(size).value()) : std::nullopt;
}

/*! \brief The number in an extent such as min(n, 2); -1 where it is no such. */
int64_t LeastOf(const ir::Expr& extent) {
  const auto binary = ir::BinaryExpr::Cast(extent);
  if (!binary.defined() || binary.kind() != ir::BinaryKind::kMin) return -1;
  return std::max(NumberOf(binary.a()).value_or(-1), NumberOf(binary.b()).value_or(-1));
}

/*!
 * \brief The elements that a slice takes along its axis number `i`, of unknown extent, if they are
 * few. Without `assume_inbound` TVM types `x[:, S - 2:S]` as min(S, ..) elements; of the first or
 * the last one it is known that there is one.
 */
std::optional<FewOfUnknown> FewAlong(const OpView& view, size_t i, int dim) {
  const ir::NodeArray<ir::Expr>& args = view.call.args();
  const ir::Expr& size = ir::ShapeOf(view.operands[0])[dim];
  const ir::Expr& extent = ir::ShapeOf(view.results[0])[dim];
  if (ir::StaticDim(size) >= 0) return std::nullopt;
  const ir::Expr begin = ir::Tuple::Cast(args[2]).fields()[i];
  const ir::Expr end = ir::Tuple::Cast(args[3]).fields()[i];
  const std::optional<int64_t> from = NumberOf(begin), to = NumberOf(end);
  const ir::Expr counted = from.value_or(0) < 0 ? ir::Add(size, *from) : begin;  // from the front
  FewOfUnknown few{i, ir::StaticDim(extent), counted};
  if (few.count >= 0) return few;
  if (args.size() > 4 && (*IntegersOf(args[4]))[i] != 1) return std::nullopt;
  const bool is_end =
      ir::SameDim(end, size) || to.value_or(0) >= std::numeric_limits<int32_t>::max();
  const int64_t from_end = is_end ? ir::StaticDim(ir::Subtract(size, counted)) : -1;
  few.may_be_fewer = true;
  if (from_end > 0) {
    few.count = from_end;
    few.begin = ir::Subtract(size, extent);
  } else if (from && to && *from < *to && (*from < 0) == (*to < 0)) {
    few.count = *to - *from;
  } else {
    few.count = LeastOf(extent);
  }
  const bool is_one = few.count == 1 && (from_end == 1 || from == 0);
  if (is_one) {
    few.begin = counted;
    few.may_be_fewer = false;
  }
  return few;
}

/*! \brief The dimensions of unknown extent of which a slice takes few elements. */
std::map<int, FewOfUnknown> FewElements(const OpView& view) {
  std::map<int, FewOfUnknown> few;
  const ir::NodeArray<ir::Expr>& args = view.call.args();
  const auto axes = IntegersOf(args[1]);
  if (!axes || (args.size() > 4 && !IntegersOf(args[4])) || !ir::Tuple::Is(args[2]) ||
      !ir::Tuple::Is(args[3]))
    return few;
  for (size_t i = 0; i < axes->size(); ++i) {
    const int dim = NormalizeAxis((*axes)[i], ShardableRank(view.operands[0]));
    const std::optional<FewOfUnknown> found = FewAlong(view, i, dim);
    if (found && AreFew({found->count})) few.emplace(dim, *found);
  }
  return few;
}

FactorRule StridedSlice(const OpView& view) {
  if (!ir::HasKnownShape(view.operands[0]) || !ir::HasKnownShape(view.results[0]))
    return ReplicateAll(view);
  const std::vector<bool> cut = CutDims(view);
  FactorRule rule = HasKnownPlace(view) ? SameRank(view, cut, Along::kMoved, ElementsMoved(view))
                                        : SameRank(view, cut, Along::kWhole);
  for (const auto& [dim, few] : FewElements(view)) {
    if (!cut[dim]) continue;
    rule.operands[0][dim].clear();
    rule.operands[0][dim].push_back(static_cast<int>(rule.factors.size()));
    rule.factors.push_back({-1, rules::DecomposedFactor()});
  }
  return rule;
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

/*! \brief The few elements that a slice takes along a dimension of unknown extent: `extent` of
 * them. */
ir::Expr LookUpFewFrom(const ir::Expr& x, int dim, const FewOfUnknown& few, const ir::Expr& extent,
                       const ir::Call& call, Writer* w) {
  const int64_t stride = call.args().size() > 4 ? (*IntegersOf(call.args()[4]))[few.index] : 1;
  ir::Expr first = w->Number(few.begin);
  if (few.may_be_fewer) {
    const int64_t most = std::numeric_limits<int32_t>::max();
    first = w->Write(ir::make::kClip, first, ir::MakeInt(0), ir::MakeInt(most));
  }
  ir::Expr steps = w->Range(ir::MakeInt(few.count), {});
  if (stride != 1)
    steps = w->Write(ir::make::kMultiply, steps, w->Scalar(static_cast<double>(stride), kInt64));
  const bool is_bool = DtypeOf(x).code == kDLBool;
  ir::Expr found =
      LookUpFew(is_bool ? w->Cast(x, kInt8) : x, w->Write(ir::make::kAdd, first, steps), dim,
                w->ShardingOf(x).dims[dim], w);
  found = w->Cast(found, DtypeOf(x));
  if (!few.may_be_fewer) return found;
  const auto one = [](const ir::Expr& value) { return ir::MakeTuple({value}); };
  return w->Write(ir::make::kStridedSlice, found, one(ir::MakeInt(dim)), one(ir::MakeInt(0)),
                  one(extent), one(ir::MakeInt(1)), true);
}

// Slices along replicated dimensions come first, and those that few elements are left of, so that
// less is moved.
ir::Expr DecomposeStridedSlice(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  const ir::NodeArray<ir::Expr>& args = call.call.args();
  const std::vector<int64_t> axes = *IntegersOf(args[1]);
  ffi::Array<ir::Expr> rest[4];  // axes, begins, ends, strides
  std::vector<std::pair<int, Segment>> moved;
  const auto few = FewElements(ViewCall(call.call, call.result()));
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(ir::TensorType::Cast(call.result()));
  for (size_t i = 0; i < axes.size(); ++i) {
    int dim = NormalizeAxis(axes[i], RankOf(x));
    if (call.IsDecomposed(0, dim) && few.count(dim) > 0) {
      x = LookUpFewFrom(x, dim, few.at(dim), shape[dim], call.call, w);
      continue;
    }
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
  for (const auto& [dim, each] : few) {
    if (call.IsDecomposed(0, dim) && ir::StaticDim(shape[dim]) < 0) return w->Reshape(x, shape);
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

std::optional<Movement> PadMovement(const OpView& view) {
  auto widths = ir::attrs::kPadPadWidth(view.call.attrs()).as<ffi::Array<int64_t>>();
  if (!widths.has_value() || !MayMove(view, *widths)) return std::nullopt;
  const std::string mode = ir::attrs::kPadPadMode.Text(view.call.attrs());
  const Sizes sizes = StaticSizes(view.operands[0]);
  std::optional<Movement> movement;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    const int64_t before = (*widths)[2 * d], after = (*widths)[2 * d + 1];
    if (before == 0 && after == 0) continue;
    if (movement || sizes[d] <= 0) return std::nullopt;
    movement = Movement{d, PaddingSegments(mode, sizes[d], before, after)};
    if (mode == "constant")
      movement->fill = NumberText(ir::attrs::kPadPadValue(view.call.attrs()).cast<double>());
  }
  return movement;
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

bool PadsZeros(const OpView& view) {
  const ir::Node& attrs = view.call.attrs();
  return ir::attrs::kPadPadMode.Text(attrs) == "constant" &&
         ir::attrs::kPadPadValue(attrs).cast<double>() == 0;
}

// ---- the records

const Operators kSlice(
    "indexing",
    {"dimensions that are not cut or padded", "",
     "others, where an extent is unknown, but for slices of few elements",
     "others: every shard gets the elements that it lacks; a slice of fewer elements than shards "
     "takes the first axes that it has elements for, or none; of an unknown extent the first, the "
     "last, or up to 16 elements are summed"},
    {Operator("relax.strided_slice", StridedSlice)
         .Decompose(DecomposeStridedSlice)
         .Moves(SliceMovement)
         .Pad(Padding::kDecomposed)
         .Commutes(kMovingFirst)
         .LocalAttrs(/*local_attrs=*/nullptr)
         .LocalArgs(LocalEnds),
     Operator("relax.nn.pad", Pad)
         .Decompose(DecomposePad)
         .Moves(PadMovement)
         .Pad(Padding::kDecomposed)
         .Commutes(Commutation().Sum(In::kFirst).Mean(In::kFirst).If(PadsZeros))});

}  // namespace

}  // namespace distir::ops
