// Operators that cut, join or look up along one dimension: that dimension is kept whole, the others
// pass through.
#include "ir/symbolic.h"
#include "rules/axes.h"
#include "rules/registry.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kConcatAxis("relax.attrs.ConcatAttrs", "axis");
const ir::AttrField kSplitAxis("relax.attrs.SplitAttrs", "axis");
const ir::AttrField kTakeAxis("relax.attrs.TakeAttrs", "axis");
const ir::AttrField kOneHotAxis("relax.attrs.OneHotAttrs", "axis");

// All operands and results have one rank; the dimensions in `whole` carry no factor.
FactorRule SameRank(const OpView& view, const std::vector<bool>& whole) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[0]);
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    if (whole[d]) continue;
    int factor = builder.Parallel(sizes[d]);
    for (size_t i = 0; i < view.operands.size(); ++i) builder.Operand(i, d, factor);
    for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, d, factor);
  }
  return builder.Finish();
}

FactorRule Concat(const OpView& view) {
  if (view.operands.empty()) return ReplicateAll(view);
  ffi::Any axis = kConcatAxis(view.call.attrs());
  return SameRank(view, AxisMask(axis, ShardableRank(view.operands[0])));
}

FactorRule Split(const OpView& view) {
  return SameRank(view, AxisMask(kSplitAxis(view.call.attrs()), ShardableRank(view.operands[0])));
}

FactorRule LastTwoWhole(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  std::vector<bool> whole(rank, false);
  for (int d = rank - 2; d < rank; ++d) {
    if (d >= 0) whole[d] = true;
  }
  return SameRank(view, whole);
}

// A dimension that the slice leaves as it is passes through.
FactorRule StridedSlice(const OpView& view) {
  if (!ir::HasKnownShape(view.operands[0]) || !ir::HasKnownShape(view.results[0]))
    return ReplicateAll(view);
  int rank = ShardableRank(view.operands[0]);
  std::vector<bool> whole(rank, false);
  auto axes = ir::Tuple::Cast(view.call.args()[1]);
  if (!axes.defined()) return ReplicateAll(view);
  for (const ir::Expr& axis : axes.fields()) {
    if (!ir::IntImm::Is(axis)) return ReplicateAll(view);
    whole[NormalizeAxis(ir::IntImm::Cast(axis).value(), rank)] = true;
  }
  return SameRank(view, whole);
}

// result = data[.., indices, ..] along `axis`: the looked-up dimension of the data is kept whole.
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
      builder.Operand(0, d, builder.Replicate(data[d]));
    } else {
      int factor = builder.Parallel(data[d]);
      builder.Operand(0, d, factor);
      builder.Result(0, result_dim++, factor);
    }
  }
  return builder.Finish();
}

// The new dimension is kept whole; the two values are scalars.
FactorRule OneHot(const OpView& view) {
  Sizes indices = StaticSizes(view.operands[0]);
  int result_rank = static_cast<int>(indices.size()) + 1;
  int axis = NormalizeAxis(kOneHotAxis.Int(view.call.attrs(), -1), result_rank);
  RuleBuilder builder(view);
  for (int d = 0; d < static_cast<int>(indices.size()); ++d) {
    int factor = builder.Parallel(indices[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d < axis ? d : d + 1, factor);
  }
  return builder.Finish();
}

const RuleTable kTable("indexing", {{"relax.concat", Concat},
                                    {"relax.one_hot", OneHot},
                                    {"relax.split", Split},
                                    {"relax.strided_slice", StridedSlice},
                                    {"relax.take", Take},
                                    {"relax.tril", LastTwoWhole},
                                    {"relax.triu", LastTwoWhole}});

}  // namespace

}  // namespace rules
}  // namespace distir
