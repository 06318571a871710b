/*!
 * \file rules/call/projection.h
 * \brief Between shardings of tensors and shardings of a rule's factors.
 *
 * Project: reads off, for every factor, the axes that a tensor's dimensions put on it. Compose: the
 * inverse. A minor factor of a dimension can only be sharded when all factors before it in that
 * dimension are fully sharded, else its shards would not be contiguous blocks.
 */
#ifndef DISTIR_RULES_CALL_PROJECTION_H_
#define DISTIR_RULES_CALL_PROJECTION_H_

#include <vector>

#include "mesh/sharding.h"
#include "rules/factor/factor_rule.h"

namespace distir {
namespace rules {

using FactorShardings = std::vector<mesh::AxisList>;  // one list per factor

/*! \brief The longest prefix of `axes`, cutting one reference if needed, whose shards divide `size`
 * (-1: any). */
mesh::AxisList FittingPrefix(const mesh::AxisList& axes, int64_t size);
/*! \brief The same for a factor: one that may be uneven takes axes as long as it has an element for
 * each shard. */
mesh::AxisList FittingPrefix(const mesh::AxisList& axes, const Factor& factor);

/*! \brief Adds to `out` what the dimensions of one tensor say about each of its factors; what does
 * not fit is left out. */
void Project(const FactorRule& rule, const TensorFactors& tensor, const mesh::Sharding& sharding,
             FactorShardings* out);

/*! \brief The sharding of a tensor whose factors are sharded so. */
mesh::Sharding Compose(const FactorRule& rule, const TensorFactors& tensor,
                       const FactorShardings& factors);

/*! \brief Clears factors whose shards would not be contiguous blocks in some tensor of the rule. */
void DropUnnestable(const FactorRule& rule, FactorShardings* factors);

class CallCost;

/*! \brief How one call is computed. */
struct CallSharding {
  FactorShardings factors;
  std::vector<mesh::Sharding> operands;  // what each operand must be redistributed to
  std::vector<mesh::Sharding> results;   // what comes out
  mesh::AxisList partial;                // axes over which the results still have to be reduced
  mesh::Reduction reduction = mesh::Reduction::kNone;
  bool is_decomposed = false;  // a decomposed factor is sharded: the call has to be decomposed
};

/*!
 * \brief Decides the factors' shardings of a call from what its operands and results have.
 * Deterministic:
 *
 * 1. A factor takes the axes that a result gives it, else those of the operand with the most
 * elements (the first of equals), extended by any tensor that continues them.
 * 2. No axis serves two factors: with `cost`, the factor chooses first with which the call is
 * cheapest. Otherwise those that results name, then by the size of the operand they come from;
 * decomposed factors last.
 * 3. Where two dimensions would nest the same factors in opposite orders, the factor that chose
 * last is replicated: no mesh names both.
 * 4. With `cost`, axes of a dimension that needs replication may serve a parallel factor instead
 * (CallCost::Rehome).
 *
 * \param operands, results Known shardings; null where a tensor has none (a constant, a result to
 * be inferred).
 * \param operand_elements Number of elements of each operand, for rule 1.
 * \param cost What the ways cost; null where operands are placed so that no two factors conflict.
 */
CallSharding DecideCall(const FactorRule& rule, const std::vector<const mesh::Sharding*>& operands,
                        const std::vector<const mesh::Sharding*>& results,
                        const std::vector<double>& operand_elements,
                        const CallCost* cost = nullptr);

/*! \brief Elements of a tensor, symbolic dimensions counted as kAssumedSymbolicSize. */
double NumElements(const Sizes& sizes);

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_CALL_PROJECTION_H_
