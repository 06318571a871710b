// Follows the dimensions of tokens and experts through operators by their factor rules.
#include "optimize/pairs/pair_dims.h"

#include <algorithm>

#include "rules/registry.h"

namespace distir::optimize {

bool HasTokens(const PairDims& dims) {
  return std::any_of(dims.begin(), dims.end(), [](const PairDim& d) { return d.has_tokens(); });
}
bool HasExperts(const PairDims& dims) {
  return std::any_of(dims.begin(), dims.end(), [](const PairDim& d) { return d.has_experts(); });
}

int RowDim(const PairDims& dims) {
  int row = -1;
  for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
    if (dims[d].has_tokens() && (row < 0 || dims[d].stride > dims[row].stride)) row = d;
  }
  for (int d = 0; row < 0 && d < static_cast<int>(dims.size()); ++d)
    if (dims[d].has_experts()) return d;
  return row;
}

std::optional<RuledCall> ReadRule(const ir::Expr& value) {
  RuledCall read;
  read.call = ir::Call::Cast(value);
  if (!read.call.defined() || !rules::HasRule(read.call)) return std::nullopt;
  for (const ir::Expr& arg : read.call.args()) {
    const ir::Tuple tuple = ir::Tuple::Cast(arg);
    ir::NodeArray<ir::Expr> each{arg};
    if (tuple.defined()) each = tuple.fields();
    for (const ir::Expr& operand : each)
      if (ir::DTensorType::Is(operand.ty())) read.operands.push_back(operand);
  }
  read.rule = rules::RuleOf(rules::ViewCall(read.call, read.call.ty()));
  if (read.rule.operands.size() != read.operands.size()) return std::nullopt;
  return read;
}

std::optional<PairDims> PartsOfFactors(const rules::FactorRule& rule,
                                       const rules::TensorFactors& tensor, const PairDims& dims,
                                       int64_t num_experts) {
  PairDims parts(rule.factors.size());
  std::vector<bool> is_known(parts.size(), false);
  bool fits = tensor.size() == dims.size();
  const auto set = [&](int factor, const PairDim& part) {
    fits = fits && (!is_known[factor] || parts[factor] == part);
    parts[factor] = part;
    is_known[factor] = true;
  };
  for (size_t d = 0; fits && d < dims.size(); ++d) {
    const rules::FactorList& factors = tensor[d];
    PairDim part = dims[d];
    if (factors.empty()) {
      fits = part.part == Part::kOther;
    } else if (factors.size() == 1 || part.part == Part::kOther) {
      for (int factor : factors) set(factor, part);
    } else if (part.part == Part::kExpert) {
      fits = false;
    } else {
      size_t first = 0;
      if (part.part == Part::kPair) {
        fits = rule.factors[factors[0]].size == num_experts;
        set(factors[0], {Part::kExpert, 0});
        first = 1;
      }
      for (size_t i = factors.size(); i-- > first;) {
        set(factors[i], {Part::kToken, part.stride});
        const int64_t size = rule.factors[factors[i]].size;
        fits = fits && (size > 0 || i == first);
        part.stride *= size;
      }
    }
  }
  if (!fits) return std::nullopt;
  return parts;
}

std::optional<PairDims> PartsOfDims(const rules::FactorRule& rule,
                                    const rules::TensorFactors& tensor, const PairDims& factors) {
  PairDims dims;
  for (const rules::FactorList& list : tensor) {
    PairDim dim;
    for (size_t i = 0; i < list.size(); ++i) {
      const PairDim& part = factors[list[i]];
      if (i == 0) {
        dim = part;
        continue;
      }
      if (dim.part == Part::kOther && part.part == Part::kOther) continue;
      const bool is_inside =
          dim.part == Part::kExpert || dim.stride == part.stride * rule.factors[list[i]].size;
      if (part.part != Part::kToken || dim.part == Part::kOther || !is_inside) return std::nullopt;
      dim = {dim.part == Part::kToken ? Part::kToken : Part::kPair, part.stride};
    }
    dims.push_back(dim);
  }
  return dims;
}

}  // namespace distir::optimize
