// Sums, means, extremes and variances over dimensions. A variance takes two passes, as on one
// device.
#include "ir/symbolic.h"
#include "ops/family.h"
#include "rules/factor/reduced_dims.h"

namespace distir::ops {

namespace {

// ---- factor rules

template <typename Add>
FactorRule ReduceAxes(const OpView& view, const Add& add) {
  const ir::Node& attrs = view.call.attrs();
  std::vector<bool> mask =
      AxisMask(ir::attrs::kStatisticalAxis(attrs), ShardableRank(view.operands[0]));
  return rules::ReduceDims(view, mask, ir::attrs::kStatisticalKeepdims.Bool(attrs), add);
}

int Replicated(RuleBuilder* builder, int, int64_t size) { return builder->NeedsReplication(size); }

template <mesh::Reduction kind>
FactorRule Statistical(const OpView& view) {
  return ReduceAxes(
      view, [](RuleBuilder* builder, int, int64_t size) { return builder->Reduce(size, kind); });
}

// The mean of integers is truncated, so means of shards do not combine to it: they are summed.
FactorRule Mean(const OpView& view) {
  if (OnFloats(view)) return Statistical<mesh::Reduction::kMean>(view);
  return ReduceAxes(view, [&view](RuleBuilder* builder, int dim, int64_t) {
    return DecomposedIfKnown(view.operands[0], dim, builder);
  });
}

FactorRule Variance(const OpView& view) {
  if (!OnFloats(view)) return ReduceAxes(view, Replicated);
  return ReduceAxes(
      view, [](RuleBuilder* builder, int, int64_t size) { return builder->Decomposed(size); });
}

FactorRule Median(const OpView& view) { return ReduceAxes(view, Replicated); }

// ---- decompositions

std::vector<int> AxesOf(const DecomposedCall& call) {
  return Marked(AxisMask(ir::attrs::kStatisticalAxis(call.attrs()), RankOf(call.arg(0))));
}

bool KeepsDims(const DecomposedCall& call) {
  return ir::attrs::kStatisticalKeepdims.Bool(call.attrs());
}

ir::Expr DecomposeVariance(const DecomposedCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  std::vector<int> axes = AxesOf(call);
  ir::Expr centred = w->Write(ir::make::kSubtract, x, w->Reduce(ir::make::kMean, x, axes));
  return w->Reduce(ir::make::kMean, w->Write(ir::make::kSquare, centred), axes, KeepsDims(call));
}

ir::Expr DecomposeStd(const DecomposedCall& call, Writer* w) {
  return w->Write(ir::make::kSqrt, DecomposeVariance(call, w));
}

// Of integers: it is truncated once, at the end, and their sum may have more bits than they have.
ir::Expr DecomposeMean(const DecomposedCall& call, Writer* w) {
  constexpr DLDataType kSum{kDLInt, 64, 1};
  DLDataType dtype = DtypeOf(call.arg(0));
  ir::Expr x = w->Cast(call.arg(0), kSum);
  int64_t count = 1;
  for (int axis : AxesOf(call)) count *= ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[axis]);
  ir::Expr sum = w->Reduce(ir::make::kSum, x, AxesOf(call), KeepsDims(call));
  ir::Expr mean = w->Write(ir::make::kDivide, sum, w->Scalar(static_cast<double>(count), kSum));
  return w->Cast(mean, dtype);
}

// ---- the records

const Operators kSum("reduction", {"others", "axes: sum"},
                     {Operator("relax.sum", Statistical<mesh::Reduction::kSum>)
                          .Adds(Accumulation::kSums)
                          .Pad(Padding::kAll)
                          .Commutes(Commutation().Sum(In::kAll).Mean(In::kAll))});
const Operators kProd("reduction", {"others", "axes: product"},
                      {Operator("relax.prod", Statistical<mesh::Reduction::kProd>)
                           .Adds(Accumulation::kSums)
                           .Pad(Padding::kAll)});
const Operators kMax("reduction", {"others", "axes: maximum"},
                     {Operator("relax.max", Statistical<mesh::Reduction::kMax>)
                          .Pad(Padding::kAll)
                          .Commutes(Commutation().Max(In::kAll))});
const Operators kMin("reduction", {"others", "axes: minimum"},
                     {Operator("relax.min", Statistical<mesh::Reduction::kMin>)
                          .Pad(Padding::kAll)
                          .Commutes(Commutation().Min(In::kAll))});
const Operators kMean("reduction",
                      {"others", "axes: mean", "", "axes of integers: sums are divided at the end"},
                      {Operator("relax.mean", Mean)
                           .Adds(Accumulation::kSums)
                           .Decompose(DecomposeMean)
                           .IsMeanOf("relax.sum")
                           .Pad(Padding::kDecomposed)
                           .Commutes(Commutation().Sum(In::kAll).Mean(In::kAll).If(OnFloats))});
const Operators kMedian("reduction", {"others", "", "axes: a median is none of those of shards"},
                        {Operator("relax.median", Median).Pad(Padding::kParallel)});
const Operators kVariance("reduction",
                          {"others", "", "",
                           "axes: means of the shards, then of squared distances"},
                          {Operator("relax.std", Variance)
                               .Adds(Accumulation::kSums)
                               .Decompose(DecomposeStd)
                               .Pad(Padding::kDecomposed),
                           Operator("relax.variance", Variance)
                               .Adds(Accumulation::kSums)
                               .Decompose(DecomposeVariance)
                               .Pad(Padding::kDecomposed)});

}  // namespace

}  // namespace distir::ops
