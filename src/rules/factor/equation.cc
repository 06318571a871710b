// Parses the subscripts of an einsum.
#include "rules/factor/equation.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

#include "ir/operator_attrs.h"

namespace distir::rules {

namespace {

constexpr int kEllipsis = 256;

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

}  // namespace

Equation ReadEquation(const ir::Call& call, const std::vector<int>& ranks, int result_rank) {
  std::string text = ir::attrs::kEinsumSubscripts.Text(call.attrs());
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  size_t arrow = text.find("->");
  std::string inputs = text.substr(0, arrow) + ",";
  Equation equation;
  for (size_t begin = 0; begin < inputs.size() && equation.operands.size() < ranks.size();) {
    size_t end = inputs.find(',', begin);
    equation.operands.push_back(
        ReadSubscript(inputs.substr(begin, end - begin), ranks[equation.operands.size()]));
    begin = end + 1;
  }
  equation.result = arrow == std::string::npos ? ImplicitResult(equation.operands)
                                               : ReadSubscript(text.substr(arrow + 2), result_rank);
  return equation;
}

}  // namespace distir::rules
