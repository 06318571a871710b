/*!
 * \file optimize/pairs/weighted_sum.h
 * \brief Recognises sums over experts whose terms are zero where an expert's weight for a token is
 * zero.
 *
 *     m = R.scatter_elements(R.zeros((24, 16)), ids, scores, axis=1)      # the weights
 *     p = R.multiply(y, R.expand_dims(R.permute_dims(m), 2))              # (16, 24, 32)
 *     z = R.sum(p, axis=[0])
 *
 * Weights may be multiplied in anywhere, as long as the operators that follow keep zeros: into the
 * tokens in front of the experts (Llama 4), or behind the experts (GPT-OSS). An einsum or a matmul
 * of experts and weights counts as a product and a sum.
 */
#ifndef DISTIR_OPTIMIZE_PAIRS_WEIGHTED_SUM_H_
#define DISTIR_OPTIMIZE_PAIRS_WEIGHTED_SUM_H_

#include <map>
#include <optional>
#include <vector>

#include "optimize/pairs/pair_dims.h"
#include "optimize/program/editable_function.h"
#include "optimize/program/slot_mask.h"

namespace distir::optimize {

/*! \brief Terms of a sum, and their weights. */
struct WeightedSum {
  ir::Expr weights;
  PairDims of_weights;
  int expert_dim = -1;  // of the weights
  int64_t num_experts = 0;
  int64_t choices = 0;              // experts that a token has, as SlotMasks reads it
  std::vector<int> expert_axes;     // of the mesh, along which the experts lie
  std::vector<ir::Expr> summed;     // one value, or two whose product is summed
  std::vector<PairDims> of_summed;  // their dimensions
  PairDims of_result;
};

class WeightedSums {
 public:
  explicit WeightedSums(const EditableFunction& editable) : editable_(editable), masks_(editable) {}

  /*! \brief The ways to read a call as such a sum; empty for other calls. There may be several,
   * each of which takes another value for the weights: a product with weights looks like weights,
   * too. */
  std::vector<WeightedSum> Read(const ir::Expr& call);

 private:
  std::optional<WeightedSum> ReadBy(const RuledCall& call, size_t operand, int expert_dim);
  std::vector<size_t> KeptBy(const RuledCall& call) const;
  bool MayHave(const ir::Expr& value);
  std::optional<PairDims> Find(const ir::Expr& value, WeightedSum* sum);
  std::optional<PairDims> AsWeights(const ir::Expr& value, WeightedSum* sum);

  const EditableFunction& editable_;
  SlotMasks masks_;
  std::map<const ffi::Object*, bool> may_have_;
  int passed_ = 0;  // values that look like weights, and are not taken for them this time
};

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PAIRS_WEIGHTED_SUM_H_
