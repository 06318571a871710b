// Losses: predictions [n class ..], targets [n ..], weights [class].
#include <string>

#include "rules/registry.h"
#include "rules/special.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kReduction("relax.attrs.NLLLossAttrs", "reduction");

constexpr int kClass = 1;

enum class OfPositions { kParallel, kSum, kSpecial };

struct Loss {
  size_t predictions;              // the operand [n class ..]
  std::vector<size_t> per_target;  // operands shaped like the targets
  bool result_has_classes;         // else it is shaped like the targets
  OfPositions positions;           // of all dimensions but classes
};

/*! \brief Classes, which are special, and positions; weights of one per class have its factor. */
FactorRule PerTarget(const OpView& view, const Loss& loss) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[loss.predictions]);
  if (sizes.size() < 2) return builder.Finish();  // a single prediction
  size_t weights = loss.predictions + 2;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    if (d == kClass) {
      int factor = SpecialIfKnown(view.operands[loss.predictions], d, &builder);
      builder.Operand(loss.predictions, d, factor);
      if (weights < view.operands.size()) builder.Operand(weights, 0, factor);
      if (loss.result_has_classes) builder.Result(0, d, factor);
      continue;
    }
    int factor = loss.positions == OfPositions::kParallel ? builder.Parallel(sizes[d])
                 : loss.positions == OfPositions::kSum
                     ? builder.Reduce(sizes[d], mesh::Reduction::kSum)
                     : builder.Special(sizes[d]);
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
  std::string reduction = kReduction.Text(view.call.attrs());
  OfPositions positions = reduction == "none"  ? OfPositions::kParallel
                          : reduction == "sum" ? OfPositions::kSum
                                               : OfPositions::kSpecial;
  return PerTarget(view, {0, {1}, false, positions});
}

FactorRule NllLossBackward(const OpView& view) {
  std::string reduction = kReduction.Text(view.call.attrs());
  if (reduction == "none") return PerTarget(view, {1, {0, 2}, true, OfPositions::kParallel});
  OfPositions positions = reduction == "sum" ? OfPositions::kParallel : OfPositions::kSpecial;
  return PerTarget(view, {1, {2}, true, positions});
}

// The mean over the batch of the sum over classes; without a batch the sum.
FactorRule CrossEntropy(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (!SameSize(view.operands[0], d, view.operands[1], d)) return ReplicateAll(view);
    int factor =
        d > 0
            ? builder.Add({sizes[d], sizes[0] < 0 ? FactorKind::kReplicate : FactorKind::kSpecial})
            : builder.Reduce(sizes[d], rank == 1 ? mesh::Reduction::kSum : mesh::Reduction::kMean);
    builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
  }
  return builder.Finish();
}

const RuleTable kNll(
    "loss",
    {"all but classes, not reduced", "all but classes: sum", "",
     "classes: the target's is looked up by shards; all for a mean: sums of losses "
     "and weights"},
    {{"relax.nn.nll_loss", NllLoss}});
const RuleTable kNllBackward("loss",
                             {"all but classes", "", "",
                              "classes: by their positions; all for a mean: sums of weights"},
                             {{"relax.grad.nll_loss_backward", NllLossBackward}});
const RuleTable kEntropy("loss", {"", "batch: mean", "", "classes: products are summed"},
                         {{"relax.nn.cross_entropy_with_logits", CrossEntropy}});

}  // namespace

}  // namespace rules
}  // namespace distir
