// Losses: predictions [n class ..], targets [n ..]; classes are kept whole.
#include <string>

#include "rules/registry.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kReduction("relax.attrs.NLLLossAttrs", "reduction");

constexpr int kClass = 1;

/*!
 * \brief Dimensions of predictions other than classes, with those of tensors that lack classes.
 * \param per_target Operands shaped like the targets.
 * \param result_has_classes The result is shaped like the predictions, else like the targets.
 * \param kind How a result that lacks all of these dimensions combines; kNone: parallel ones.
 */
FactorRule PerTarget(const OpView& view, size_t predictions, const std::vector<size_t>& per_target,
                     bool result_has_classes, mesh::Reduction kind) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.operands[predictions]);
  if (sizes.size() < 2) return builder.Finish();  // a single prediction
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    if (d == kClass) continue;
    int factor = kind == mesh::Reduction::kNone ? builder.Parallel(sizes[d])
                                                : builder.Reduce(sizes[d], kind);
    int target_dim = d > kClass ? d - 1 : d;
    builder.Operand(predictions, d, factor);
    for (size_t i : per_target) builder.Operand(i, target_dim, factor);
    if (kind == mesh::Reduction::kNone)
      builder.Result(0, result_has_classes ? d : target_dim, factor);
  }
  return builder.Finish();
}

// A mean is weighted by the targets' classes, so means of shards do not combine to it.
FactorRule NllLoss(const OpView& view) {
  std::string reduction = kReduction.Text(view.call.attrs());
  if (reduction == "none") return PerTarget(view, 0, {1}, false, mesh::Reduction::kNone);
  if (reduction == "sum") return PerTarget(view, 0, {1}, false, mesh::Reduction::kSum);
  return ReplicateAll(view);
}

FactorRule NllLossBackward(const OpView& view) {
  std::string reduction = kReduction.Text(view.call.attrs());
  if (reduction == "none") return PerTarget(view, 1, {0, 2}, true, mesh::Reduction::kNone);
  if (reduction == "sum") return PerTarget(view, 1, {2}, true, mesh::Reduction::kNone);
  return ReplicateAll(view);
}

// The mean over the batch of the sum over classes; without a batch the sum.
FactorRule CrossEntropy(const OpView& view) {
  int rank = ShardableRank(view.operands[0]);
  if (rank == 0 || !SameSize(view.operands[0], 0, view.operands[1], 0)) return ReplicateAll(view);
  RuleBuilder builder(view);
  int first = builder.Reduce(StaticSizes(view.operands[0])[0],
                             rank == 1 ? mesh::Reduction::kSum : mesh::Reduction::kMean);
  builder.Operand(0, 0, first);
  builder.Operand(1, 0, first);
  return builder.Finish();
}

const RuleTable kNll("loss",
                     {"all but classes, not reduced", "all but classes: sum",
                      "classes; all for a mean"},
                     {{"relax.nn.nll_loss", NllLoss}});
const RuleTable kNllBackward("loss", {"all but classes", "", "classes; all for a mean"},
                             {{"relax.grad.nll_loss_backward", NllLossBackward}});
const RuleTable kEntropy("loss", {"", "batch: mean", "classes"},
                         {{"relax.nn.cross_entropy_with_logits", CrossEntropy}});

}  // namespace

}  // namespace rules
}  // namespace distir
