// Operators that cut, join or look up along one dimension: that dimension is kept whole, the others
// pass through.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/axes.h"
#include "rules/registry.h"
#include "rules/special.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kConcatAxis("relax.attrs.ConcatAttrs", "axis");
const ir::AttrField kSplitAxis("relax.attrs.SplitAttrs", "axis");
const ir::AttrField kFlipAxis("relax.attrs.FlipAttrs", "axis");
const ir::AttrField kPadMode("relax.attrs.PadAttrs", "pad_mode");
const ir::AttrField kPadWidth("relax.attrs.PadAttrs", "pad_width");
const ir::AttrField kTakeAxis("relax.attrs.TakeAttrs", "axis");
const ir::AttrField kTakeMode("relax.attrs.TakeAttrs", "mode");

constexpr double kAll = std::numeric_limits<double>::infinity();

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
                   elements.empty() ? kAll : elements[d]);
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
  ffi::Any axis = kConcatAxis(view.call.attrs());
  return SameRank(view, AxisMask(axis, ShardableRank(view.operands[0])), Along::kMovedIfUsed);
}

FactorRule Split(const OpView& view) {
  return SameRank(view, AxisMask(kSplitAxis(view.call.attrs()), ShardableRank(view.operands[0])),
                  Along::kMovedIfUsed);
}

FactorRule Flip(const OpView& view) {
  return SameRank(view, AxisMask(kFlipAxis(view.call.attrs()), ShardableRank(view.operands[0])),
                  Along::kMoved);
}

/*! \brief Per dimension of a slice's operand whether the slice takes only part of it, or may. */
std::vector<bool> CutDims(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  std::vector<bool> cut(rank, true);
  const ffi::Array<ir::Expr>& args = view.call.args();
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
  const ffi::Array<ir::Expr>& args = view.call.args();
  const std::vector<int64_t> axes = *IntegersOf(args[1]);
  const std::vector<int64_t> begins = *IntegersOf(args[2]);
  const Sizes sizes = StaticSizes(view.operands[0]), sliced = StaticSizes(view.results[0]);
  std::vector<double> elements(sizes.size(), kAll);
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

/*! \brief Whether what is before and behind every dimension can be taken from it piece by piece. */
bool MayMove(const OpView& view, const ffi::Array<int64_t>& widths) {
  const std::string mode = kPadMode.Text(view.call.attrs());
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
  auto widths = kPadWidth(view.call.attrs()).as<ffi::Array<int64_t>>();
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

// result = data[.., indices, ..] along `axis`; shards of the looked-up dimension add up what each
// of them has. Positions outside of the data that give NaN are no shard's.
FactorRule Take(const OpView& view) {
  if (view.operands.size() != 2) return ReplicateAll(view);
  Sizes data = StaticSizes(view.operands[0]);
  Sizes indices = StaticSizes(view.operands[1]);
  int rank = static_cast<int>(data.size());
  auto axes = ReadAxes(kTakeAxis(view.call.attrs()), rank);
  if (!axes && rank != 1) return ReplicateAll(view);  // of the flattened tensor
  int axis = axes ? (*axes)[0] : 0;
  RuleBuilder builder(view);
  int result_dim = 0;
  for (int d = 0; d < rank; ++d) {
    if (d == axis) {
      for (int k = 0; k < static_cast<int>(indices.size()); ++k) {
        int factor = builder.Parallel(indices[k]);
        builder.Operand(1, k, factor);
        builder.Result(0, result_dim++, factor);
      }
      bool gives_nan = kTakeMode.Text(view.call.attrs()) == "nan";
      builder.Operand(
          0, d,
          gives_nan ? builder.Replicate(data[d]) : SpecialIfKnown(view.operands[0], d, &builder));
    } else {
      int factor = builder.Parallel(data[d]);
      builder.Operand(0, d, factor);
      builder.Result(0, result_dim++, factor);
    }
  }
  return builder.Finish();
}

const RuleTable kTable("indexing",
                       {"others", "", "axis, where an extent is one or unknown",
                        "axis: every shard gets the elements that it lacks"},
                       {{"relax.concat", Concat}, {"relax.flip", Flip}, {"relax.split", Split}});
const RuleTable kSlice("indexing",
                       {"dimensions that are not cut or padded", "",
                        "others, where an extent is one or unknown",
                        "others: every shard gets the elements that it lacks"},
                       {{"relax.strided_slice", StridedSlice, /*shape_argument=*/-1,
                         /*local_attrs=*/nullptr, LocalEnds},
                        {"relax.nn.pad", Pad}});
const RuleTable kTake(
    "indexing",
    {"indices, other dimensions of the table", "", "",
     "the dimension looked up: every shard gives its rows or 0, which are summed"},
    {{"relax.take", Take}});

}  // namespace

}  // namespace rules
}  // namespace distir
