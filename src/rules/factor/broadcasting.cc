// Builds the rule of NumPy's broadcasting.
#include "rules/factor/broadcasting.h"

#include "ir/symbolic.h"

namespace distir::rules {

namespace {

// If only ranks are known, the dimensions of a single operand are those of the result.
bool IsAligned(const OpView& view, size_t operand, int dim, int result_dim) {
  const ir::TensorType& from = view.operands[operand];
  const ir::TensorType& to = view.results[0];
  if (!ir::HasKnownShape(from) || !ir::HasKnownShape(to)) return view.operands.size() == 1;
  return SameSize(from, dim, to, result_dim);
}

}  // namespace

FactorRule Broadcasting(const OpView& view) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.results[0]);
  int rank = static_cast<int>(sizes.size());
  for (int d = 0; d < rank; ++d) {
    int factor = builder.Parallel(sizes[d]);
    for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, d, factor);
    for (size_t i = 0; i < view.operands.size(); ++i) {
      int dim = d - (rank - ShardableRank(view.operands[i]));
      if (dim >= 0 && IsAligned(view, i, dim, d)) builder.Operand(i, dim, factor);
    }
  }
  return builder.Finish();
}

}  // namespace distir::rules
