// Einsum: its subscripts are a factor rule already. A label of the result is parallel, any other
// label a sum.
#include <algorithm>
#include <cctype>
#include <map>
#include <string>

#include "rules/registry.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kSubscripts("relax.attrs.EinsumAttrs", "subscripts");

using Labels = std::vector<int>;
// Labels of an ellipsis: so much, plus the dimension counted from the right.
constexpr int kEllipsis = 256;

struct Equation {
  std::vector<Labels> operands;
  Labels result;
};

/*! \brief One label per dimension of a tensor; an ellipsis takes what its letters leave. */
Labels ReadSubscript(const std::string& text, int rank) {
  int letters = static_cast<int>(
      std::count_if(text.begin(), text.end(), [](unsigned char c) { return std::isalpha(c); }));
  Labels labels;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '.') {
      labels.push_back(text[i]);
      continue;
    }
    for (int d = rank - letters; d > 0; --d) labels.push_back(kEllipsis + d);
    i += 2;
  }
  return labels;
}

/*! \brief Without an arrow: the ellipsis, then the letters that appear once, in their order. */
Labels ImplicitResult(const std::vector<Labels>& operands) {
  std::map<int, int> uses;
  for (const Labels& labels : operands) {
    for (int label : labels) ++uses[label];
  }
  Labels result;
  for (auto it = uses.rbegin(); it != uses.rend() && it->first >= kEllipsis; ++it)
    result.push_back(it->first);
  for (const auto& [label, count] : uses) {
    if (label < kEllipsis && count == 1) result.push_back(label);
  }
  return result;
}

Equation ReadEquation(const OpView& view) {
  std::string text = kSubscripts.Text(view.call.attrs());
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  size_t arrow = text.find("->");
  std::string inputs = text.substr(0, arrow) + ",";
  Equation equation;
  for (size_t begin = 0;
       begin < inputs.size() && equation.operands.size() < view.operands.size();) {
    size_t end = inputs.find(',', begin);
    int rank = ShardableRank(view.operands[equation.operands.size()]);
    equation.operands.push_back(ReadSubscript(inputs.substr(begin, end - begin), rank));
    begin = end + 1;
  }
  equation.result = arrow == std::string::npos
                        ? ImplicitResult(equation.operands)
                        : ReadSubscript(text.substr(arrow + 2), ShardableRank(view.results[0]));
  return equation;
}

/*! \brief Whether every tensor has as many dimensions as labels. */
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
  Equation equation = ReadEquation(view);
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

const RuleTable kTable("contraction",
                       {"labels of the result", "other labels: sum", "labels of a diagonal"},
                       {{"relax.einsum", Einsum}});

}  // namespace

}  // namespace rules
}  // namespace distir
