/*!
 * \file optimize/pairs/pair_dims.h
 * \brief Token and expert dimensions of values, followed through operators by their factor rules.
 *
 * Worked example: weights (16, 24) of 16 experts and 24 tokens have the parts {expert, token}.
 * Reshaped to (16, 8, 3) these are {expert, token, token}, where a step along dimension 1 is three
 * tokens: its stride is 3. Times a value (16, 8, 3, 32) the result has the parts {.., other}.
 * Reshaped to (384, 1) the weights have one dimension of pairs.
 */
#ifndef DISTIR_OPTIMIZE_PAIRS_PAIR_DIMS_H_
#define DISTIR_OPTIMIZE_PAIRS_PAIR_DIMS_H_

#include <optional>
#include <vector>

#include "ir/node.h"
#include "rules/factor/factor_rule.h"

namespace distir::optimize {

namespace ffi = tvm::ffi;

enum class Part {
  kOther,
  kToken,
  kExpert,
  kPair,  // experts, then tokens
};

struct PairDim {
  Part part = Part::kOther;
  int64_t stride = 0;  // of tokens

  bool has_tokens() const { return part == Part::kToken || part == Part::kPair; }
  bool has_experts() const { return part == Part::kExpert || part == Part::kPair; }
  bool operator==(const PairDim& other) const {
    return part == other.part && stride == other.stride;
  }
};
using PairDims = std::vector<PairDim>;

bool HasTokens(const PairDims& dims);
bool HasExperts(const PairDims& dims);
/*! \brief The dimension along which pairs become rows: that of the outermost tokens, or of experts
 * where there are no tokens; -1 where there are none of either. */
int RowDim(const PairDims& dims);

/*! \brief A call of an operator with its rule and tensor operands, tuples flattened as in it. */
struct RuledCall {
  ir::Call call;
  rules::FactorRule rule;
  std::vector<ir::Expr> operands;
};
/*! \brief Such a call; nullopt for any other value. */
std::optional<RuledCall> ReadRule(const ir::Expr& value);

/*!
 * \brief The part that each factor of a rule is, from those of the dimensions of one tensor;
 * factors that the tensor does not have are kOther. nullopt where a factor would be two different
 * parts, or where a dimension of several factors cannot be told apart.
 */
std::optional<PairDims> PartsOfFactors(const rules::FactorRule& rule,
                                       const rules::TensorFactors& tensor, const PairDims& dims,
                                       int64_t num_experts);
/*! \brief The parts of the dimensions of a tensor from those of factors. */
std::optional<PairDims> PartsOfDims(const rules::FactorRule& rule,
                                    const rules::TensorFactors& tensor, const PairDims& factors);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PAIRS_PAIR_DIMS_H_
