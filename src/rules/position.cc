// Operators whose elements follow from where they are, or from nothing: tensors made from sizes,
// one-hot vectors, triangles. Factors that only results have are made in pieces where a part of the
// result is asked for (expand/creation.h).
#include "ir/build.h"
#include "ir/tir_node.h"
#include "rules/axes.h"
#include "rules/registry.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kOneHotAxis("relax.attrs.OneHotAttrs", "axis");

/*! \brief All dimensions of the result, and those of operands of its rank, in one kind of factor.
 */
FactorRule AllOf(const OpView& view, FactorKind kind) {
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

/*! \brief Whether the result's size and all arguments but the tensors are numbers. */
bool IsKnown(const OpView& view) {
  for (int64_t size : StaticSizes(view.results[0])) {
    if (size < 0) return false;
  }
  for (const ir::Expr& arg : view.call.args()) {
    if (ir::PrimType::Is(arg.ty()) && !IsNumber(arg)) return false;
  }
  return true;
}

FactorRule Filled(const OpView& view) { return AllOf(view, FactorKind::kParallel); }

FactorRule ByPosition(const OpView& view) {
  return AllOf(view, IsKnown(view) ? FactorKind::kSpecial : FactorKind::kReplicate);
}

// The two values are numbers.
FactorRule OneHot(const OpView& view) {
  Sizes indices = StaticSizes(view.operands[0]);
  Sizes result = StaticSizes(view.results[0]);
  int axis = NormalizeAxis(kOneHotAxis.Int(view.call.attrs(), -1), static_cast<int>(result.size()));
  RuleBuilder builder(view);
  for (int d = 0; d < static_cast<int>(indices.size()); ++d) {
    int factor = builder.Parallel(indices[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d < axis ? d : d + 1, factor);
  }
  builder.Result(0, axis, builder.Special(result[axis]));
  return builder.Finish();
}

FactorRule Triangle(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  FactorKind kind = IsNumber(view.call.args()[1]) ? FactorKind::kSpecial : FactorKind::kReplicate;
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
  int64_t depth = sizes[NormalizeAxis(kOneHotAxis.Int(attrs, -1), static_cast<int>(sizes.size()))];
  return HasSizesOf(global, local) ? attrs : ir::WithField(attrs, "depth", depth);
}

const RuleTable kFilled("create", {"all, made in pieces"},
                        {{"relax.full", Filled, /*shape_argument=*/0},
                         {"relax.ones", Filled, /*shape_argument=*/0},
                         {"relax.zeros", Filled, /*shape_argument=*/0}});
const RuleTable kRange("create",
                       {"", "", "", "all of a known size: every shard is made from its positions"},
                       {{"relax.arange", ByPosition, -1, nullptr, LocalRange},
                        {"relax.eye", ByPosition, -1, nullptr, LocalRowsAndColumns},
                        {"relax.eye_like", ByPosition},
                        {"relax.hamming_window", ByPosition}});
const RuleTable kOneHot("indexing",
                        {"indices", "", "", "the new dimension: made from its positions"},
                        {{"relax.one_hot", OneHot, -1, LocalDepth}});
const RuleTable kTriangle("indexing",
                          {"others", "", "", "the last two: kept or not by their positions"},
                          {{"relax.tril", Triangle}, {"relax.triu", Triangle}});

}  // namespace

}  // namespace rules
}  // namespace distir
