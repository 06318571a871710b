// Matrix multiplication of any ranks: batch dimensions broadcast, rows and columns are parallel,
// the contracted dimension is a sum.
#include "ops/family.h"

namespace distir::ops {

namespace {

FactorRule Matmul(const OpView& view) {
  if (view.operands.size() != 2 || view.results.size() != 1) return ReplicateAll(view);
  Sizes lhs = StaticSizes(view.operands[0]);
  Sizes rhs = StaticSizes(view.operands[1]);
  Sizes out = StaticSizes(view.results[0]);
  int lhs_rank = static_cast<int>(lhs.size());
  int rhs_rank = static_cast<int>(rhs.size());
  int out_rank = static_cast<int>(out.size());
  if (lhs_rank == 0 || rhs_rank == 0) return ReplicateAll(view);  // ranks unknown
  bool has_rows = lhs_rank > 1;
  bool has_columns = rhs_rank > 1;
  int batch_rank = out_rank - has_rows - has_columns;

  RuleBuilder builder(view);
  for (int d = 0; d < batch_rank; ++d) {
    int factor = builder.Parallel(out[d]);
    builder.Result(0, d, factor);
    int lhs_dim = d - (batch_rank - (lhs_rank - 1 - has_rows));
    int rhs_dim = d - (batch_rank - (rhs_rank - 1 - has_columns));
    if (lhs_dim >= 0 && SameSize(view.operands[0], lhs_dim, view.results[0], d))
      builder.Operand(0, lhs_dim, factor);
    if (rhs_dim >= 0 && SameSize(view.operands[1], rhs_dim, view.results[0], d))
      builder.Operand(1, rhs_dim, factor);
  }
  if (has_rows) {
    int rows = builder.Parallel(lhs[lhs_rank - 2]);
    builder.Operand(0, lhs_rank - 2, rows);
    builder.Result(0, batch_rank, rows);
  }
  int contracted = builder.Reduce(lhs[lhs_rank - 1], mesh::Reduction::kSum);
  builder.Operand(0, lhs_rank - 1, contracted);
  builder.Operand(1, has_columns ? rhs_rank - 2 : 0, contracted);
  if (has_columns) {
    int columns = builder.Parallel(rhs[rhs_rank - 1]);
    builder.Operand(1, rhs_rank - 1, columns);
    builder.Result(0, out_rank - 1, columns);
  }
  return builder.Finish();
}

FactorRule Outer(const OpView& view) {
  RuleBuilder builder(view);
  for (int i = 0; i < 2; ++i) {
    int factor = builder.Parallel(StaticSizes(view.results[0])[i]);
    builder.Operand(i, 0, factor);
    builder.Result(0, i, factor);
  }
  return builder.Finish();
}

const Operators kMatmul("contraction",
                        {"batch, rows, columns", "contracted: sum", "batch dimensions of size 1"},
                        {Operator("relax.matmul", Matmul)
                             .Adds(Accumulation::kProducts)
                             .Pad(Padding::kAll)
                             .Commutes(Commutation().Sum(In::kOne).Mean(In::kOne))});
const Operators kOuter("contraction", {"all"}, {Operator("relax.outer", Outer).Pad(Padding::kAll)});

}  // namespace

}  // namespace distir::ops
