// Losses: predictions [n class ..], targets [n ..], weights [class].
// Losses of which classes are sharded: each shard knows the losses, or the weights, of its own
// classes, and their sum is that of all.
#include <string>

#include "ir/symbolic.h"
#include "ops/family.h"
#include "ops/lookup.h"

namespace distir::ops {

namespace {

// ---- factor rules

constexpr int kClass = 1;

enum class OfPositions { kParallel, kSum, kDecomposed };

struct Loss {
  size_t predictions;              // the operand [n class ..]
  std::vector<size_t> per_target;  // operands shaped like the targets
  bool result_has_classes;         // else it is shaped like the targets
  OfPositions positions;           // of all dimensions but classes
};

/*! \brief Classes, which are decomposed, and positions; weights of one per class have its factor.
 */
FactorRule PerTarget(const OpView& view, const Loss& loss) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[loss.predictions]);
  if (sizes.size() < 2) return builder.Finish();  // a single prediction
  size_t weights = loss.predictions + 2;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    if (d == kClass) {
      int factor = DecomposedIfKnown(view.operands[loss.predictions], d, &builder);
      builder.Operand(loss.predictions, d, factor);
      if (weights < view.operands.size()) builder.Operand(weights, 0, factor);
      if (loss.result_has_classes) builder.Result(0, d, factor);
      continue;
    }
    int factor = loss.positions == OfPositions::kParallel ? builder.Parallel(sizes[d])
                 : loss.positions == OfPositions::kSum
                     ? builder.Reduce(sizes[d], mesh::Reduction::kSum)
                     : builder.Decomposed(sizes[d]);
    int target_dim = d > kClass ? d - 1 : d;
    builder.Operand(loss.predictions, d, factor);
    for (size_t i : loss.per_target) builder.Operand(i, target_dim, factor);
    int result_dim = loss.result_has_classes ? d : target_dim;
    if (result_dim < ShardableRank(view.results[0])) builder.Result(0, result_dim, factor);
  }
  return builder.Finish();
}

// A mean is weighted by the targets' classes, so it is a sum over the sum of weights.
FactorRule NllLoss(const OpView& view) {
  std::string reduction = ir::attrs::kNLLLossReduction.Text(view.call.attrs());
  OfPositions positions = reduction == "none"  ? OfPositions::kParallel
                          : reduction == "sum" ? OfPositions::kSum
                                               : OfPositions::kDecomposed;
  return PerTarget(view, {0, {1}, false, positions});
}

FactorRule NllLossBackward(const OpView& view) {
  std::string reduction = ir::attrs::kNLLLossReduction.Text(view.call.attrs());
  if (reduction == "none") return PerTarget(view, {1, {0, 2}, true, OfPositions::kParallel});
  OfPositions positions = reduction == "sum" ? OfPositions::kParallel : OfPositions::kDecomposed;
  return PerTarget(view, {1, {2}, true, positions});
}

// The mean over the batch of the sum over classes; without a batch the sum. No operator gives the
// sum over the batch that a mean of padded shards is made of, so the batch is decomposed, too.
FactorRule CrossEntropy(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (!SameSize(view.operands[0], d, view.operands[1], d)) return ReplicateAll(view);
    int factor =
        rank == 1 ? builder.Reduce(sizes[d], mesh::Reduction::kSum) : builder.Decomposed(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
  }
  return builder.Finish();
}

// ---- decompositions

std::vector<int> AllDims(const ir::Expr& x) {
  std::vector<int> dims;
  for (int d = 0; d < RankOf(x); ++d) dims.push_back(d);
  return dims;
}

/*! \brief Targets of a call, and their weights: 0 for an ignored target. */
struct Targets {
  ir::Expr classes;  // a class that exists where the target is ignored
  ir::Expr weights;
};

/*! \param predictions Index of their operand; targets and weights follow. */
Targets Weigh(const DecomposedCall& call, size_t predictions, const mesh::AxisList& class_axes,
              Writer* w) {
  ir::Expr targets = call.arg(predictions + 1);
  DLDataType index = DtypeOf(targets), dtype = DtypeOf(call.arg(predictions));
  auto ignored = static_cast<double>(ir::attrs::kNLLLossIgnoreIndex.Int(call.attrs(), -1));
  ir::Expr counts = w->Write(ir::make::kNotEqual, targets, w->Scalar(ignored, index));
  ir::Expr classes = w->Write(ir::make::kWhere, counts, targets, w->Scalar(0, index));
  ir::Expr weights = w->Scalar(1, dtype);
  if (call.call.args().size() > predictions + 2)
    weights = LookUpRows(call.arg(predictions + 2), classes, 0, class_axes, w);
  return {classes, w->Write(ir::make::kWhere, counts, weights, w->Scalar(0, dtype))};
}

const mesh::AxisList& ClassAxes(const DecomposedCall& call, size_t predictions) {
  return call.sharding.factors[call.rule.operands[predictions][kClass][0]];
}

ir::Expr DecomposeNllLoss(const DecomposedCall& call, Writer* w) {
  const mesh::AxisList& axes = ClassAxes(call, 0);
  Targets targets = Weigh(call, 0, axes, w);
  ir::Expr positions = w->ExpandDims(targets.classes, {kClass});
  ir::Expr found = w->Squeeze(LookUpElements(call.arg(0), positions, kClass, axes, w), {kClass});
  ir::Expr losses =
      w->Write(ir::make::kNegative, w->Write(ir::make::kMultiply, found, targets.weights));
  std::string reduction = ir::attrs::kNLLLossReduction.Text(call.attrs());
  if (reduction == "none") return losses;
  ir::Expr sum = w->Reduce(ir::make::kSum, losses, AllDims(losses), /*keepdims=*/false);
  if (reduction == "sum") return sum;
  ir::Expr weight = w->Reduce(ir::make::kSum, targets.weights, AllDims(losses), /*keepdims=*/false);
  return w->Write(ir::make::kDivide, sum, weight);
}

// Every class of a prediction has the gradient of its loss, 0 where it is not the target.
ir::Expr DecomposeNllLossBackward(const DecomposedCall& call, Writer* w) {
  ir::Expr gradient = call.arg(0), predictions = call.arg(1);
  const mesh::AxisList& axes = ClassAxes(call, 1);
  Targets targets = Weigh(call, 1, axes, w);
  if (ir::attrs::kNLLLossReduction.Text(call.attrs()) == "mean") {
    std::vector<int> all = AllDims(targets.weights);
    gradient = w->Write(ir::make::kDivide, gradient,
                        w->Reduce(ir::make::kSum, targets.weights, all, false));
  }
  ir::Expr own =
      w->Write(ir::make::kNegative, w->Write(ir::make::kMultiply, targets.weights, gradient));
  const ir::Expr& size = ir::ShapeOf(TensorTypeOf(predictions))[kClass];
  std::vector<int> behind;
  for (int d = kClass + 1; d < RankOf(predictions); ++d) behind.push_back(d - kClass);
  ir::Expr classes = w->ExpandDims(w->Positions(axes, size), behind);
  ir::Expr wanted = w->ExpandDims(w->Cast(targets.classes, DtypeOf(classes)), {kClass});
  return w->Write(ir::make::kWhere, w->Write(ir::make::kEqual, wanted, classes),
                  w->ExpandDims(own, {kClass}), w->Scalar(0, DtypeOf(predictions)));
}

ir::Expr DecomposeCrossEntropy(const DecomposedCall& call, Writer* w) {
  ir::Expr products = w->Write(ir::make::kMultiply, call.arg(0), call.arg(1));
  std::vector<int> classes = AllDims(products);
  classes.erase(classes.begin());
  ir::Expr losses = w->Reduce(ir::make::kSum, products, classes, /*keepdims=*/false);
  return w->Write(ir::make::kNegative, w->Reduce(ir::make::kMean, losses, {0}, false));
}

// ---- the records

const Operators kNll(
    "loss",
    {"all but classes, not reduced", "all but classes: sum", "",
     "classes: the target's is looked up by shards; all for a mean: sums of losses "
     "and weights"},
    {Operator("relax.nn.nll_loss", NllLoss)
         .Adds(Accumulation::kSums)
         .Decompose(DecomposeNllLoss)
         .Pad(Padding::kDecomposed)
         .Tails(OperandTails::kPositions)});
const Operators kNllBackward("loss",
                             {"all but classes", "", "",
                              "classes: by their positions; all for a mean: sums of weights"},
                             {Operator("relax.grad.nll_loss_backward", NllLossBackward)
                                  .Adds(Accumulation::kSums)
                                  .Decompose(DecomposeNllLossBackward)
                                  .Pad(Padding::kDecomposed)
                                  .Tails(OperandTails::kPositions)});
const Operators kEntropy("loss",
                         {"", "all, without a batch: sum", "",
                          "products are summed over classes, and their mean over the batch taken"},
                         {Operator("relax.nn.cross_entropy_with_logits", CrossEntropy)
                              .Adds(Accumulation::kSums)
                              .Decompose(DecomposeCrossEntropy)
                              .Pad(Padding::kDecomposed)});

}  // namespace

}  // namespace distir::ops
