// Einsum: its subscripts are a factor rule already. A label of the result is parallel, any other
// label a sum.
#include <algorithm>
#include <map>

#include "ops/family.h"
#include "rules/factor/equation.h"

namespace distir::ops {

namespace {

using rules::Equation;
using rules::Labels;
using rules::ReadEquation;

/*! \brief True if every tensor has as many dimensions as labels. */
bool Fits(const OpView& view, const Equation& equation) {
  if (equation.operands.size() != view.operands.size()) return false;
  for (size_t i = 0; i < view.operands.size(); ++i) {
    if (static_cast<int>(equation.operands[i].size()) != ShardableRank(view.operands[i]))
      return false;
  }
  return static_cast<int>(equation.result.size()) == ShardableRank(view.results[0]);
}

/*! \brief Labels that appear twice in one operand: its diagonal, which shards do not have. */
bool HasDiagonal(const Equation& equation, int label) {
  return std::any_of(equation.operands.begin(), equation.operands.end(),
                     [label](const Labels& labels) {
                       return std::count(labels.begin(), labels.end(), label) > 1;
                     });
}

FactorRule Einsum(const OpView& view) {
  std::vector<int> ranks;
  for (const ir::TensorType& operand : view.operands) ranks.push_back(ShardableRank(operand));
  Equation equation = ReadEquation(view.call, ranks, ShardableRank(view.results[0]));
  if (!Fits(view, equation)) return ReplicateAll(view);
  RuleBuilder builder(view);
  struct Label {
    int factor;
    size_t operand;
    int dim;
    bool is_whole;
  };
  std::map<int, Label> labels;
  // The size of a label is that of its first dimension that is not stretched.
  for (size_t i = 0; i < equation.operands.size(); ++i) {
    Sizes sizes = StaticSizes(view.operands[i]);
    for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
      int name = equation.operands[i][d];
      auto found = labels.find(name);
      if (sizes[d] == 1) continue;
      if (found == labels.end()) {
        bool is_kept = std::count(equation.result.begin(), equation.result.end(), name) > 0;
        int factor =
            is_kept ? builder.Parallel(sizes[d]) : builder.Reduce(sizes[d], mesh::Reduction::kSum);
        found = labels.emplace(name, Label{factor, i, d, HasDiagonal(equation, name)}).first;
      } else if (!SameSize(view.operands[found->second.operand], found->second.dim,
                           view.operands[i], d)) {
        found->second.is_whole = true;
      }
      builder.Operand(i, d, found->second.factor);
    }
  }
  for (int d = 0; d < static_cast<int>(equation.result.size()); ++d) {
    auto found = labels.find(equation.result[d]);
    if (found != labels.end()) builder.Result(0, d, found->second.factor);
  }
  for (const auto& [name, label] : labels) {
    if (label.is_whole) builder.ForceReplicate(label.factor);
  }
  return builder.Finish();
}

const Operators kEinsum("contraction",
                        {"labels of the result", "other labels: sum", "labels of a diagonal"},
                        {Operator("relax.einsum", Einsum)
                             .Adds(Accumulation::kSums)
                             .TakesTuple()
                             .Pad(Padding::kAll)
                             .Commutes(Commutation().Sum(In::kOne).Mean(In::kOne))});

}  // namespace

}  // namespace distir::ops
