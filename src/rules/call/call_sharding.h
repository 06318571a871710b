/*!
 * \file rules/call/call_sharding.h
 * \brief Decides how one call is computed: decided once, then read from its types.
 *
 * PropagateSharding decides (DecideCall), with what the ways cost, and redistributes the operands
 * to what the decided way needs. From then on the shardings of a call's tensors imply how it is
 * computed (ImpliedSharding): type inference, the passes (through rules::Decisions) and the
 * verifier read it so. A pass that changes a placed call, such as an optimisation that slices its
 * operands, asks what the new shardings imply, and writes them.
 *
 * Worked example: R.matmul of x (64, 64) and w (64, 64), rows of both over tp. x wants tp for the
 * rows of the product, w for the contracted dimension. DecideCall prices both ways; if the rows
 * win, w is gathered. A replicated w and rows of x over tp imply the rows, whatever anything costs.
 */
#ifndef DISTIR_RULES_CALL_CALL_SHARDING_H_
#define DISTIR_RULES_CALL_CALL_SHARDING_H_

#include <vector>

#include "mesh/sharding.h"
#include "rules/call/projection.h"
#include "rules/factor/factor_rule.h"

namespace distir::rules {

class CallCost;

/*! \brief Way in which one call is computed. */
struct CallSharding {
  FactorShardings factors;
  std::vector<mesh::Sharding> operands;  // what each operand must be redistributed to
  std::vector<mesh::Sharding> results;   // what comes out
  mesh::AxisList partial;                // axes over which the results still have to be reduced
  mesh::Reduction reduction = mesh::Reduction::kNone;
  bool is_decomposed = false;  // a decomposed factor is sharded: the call has to be decomposed
};

/*!
 * \brief Reads the shardings of the factors off those of a call's tensors. Deterministic:
 *
 * 1. A factor takes the axes that a result gives it, else those of the operand with the most
 * elements (the first of equals), extended by any tensor that continues them.
 * 2. No axis serves two factors. Those that results name come first, then by the size of the
 * operand they come from; decomposed factors last. Tensors that were placed as decided leave
 * nothing to choose; a program that is written by hand may.
 * 3. If two dimensions would nest the same factors in opposite orders, the factor that chose
 * last is replicated: no mesh names both.
 *
 * \param operands, results Known shardings; null where a tensor has none (a constant, a result to
 * be inferred).
 * \param operand_elements Number of elements of each operand, for rule 1.
 */
CallSharding ImpliedSharding(const FactorRule& rule,
                             const std::vector<const mesh::Sharding*>& operands,
                             const std::vector<const mesh::Sharding*>& results,
                             const std::vector<double>& operand_elements);

/*!
 * \brief Decides how a call is computed whose tensors disagree. For PropagateSharding alone; what
 * it decides stands in the types that it writes.
 *
 * As ImpliedSharding, but where tensors disagree the cheapest way is taken (rules/call/ways.h),
 * axes of a dimension that needs replication may serve a parallel factor instead
 * (CallCost::Rehome), and a blocked factor is sharded only where both sides have the sharding
 * already.
 *
 * \param cost Cost of the ways, for the same shardings.
 */
CallSharding DecideCall(const FactorRule& rule, const std::vector<const mesh::Sharding*>& operands,
                        const std::vector<const mesh::Sharding*>& results,
                        const std::vector<double>& operand_elements, const CallCost& cost);

}  // namespace distir::rules
#endif  // DISTIR_RULES_CALL_CALL_SHARDING_H_
