/*!
 * \file rules/call/ways.h
 * \brief Ways in which a call can be computed, and the cheapest of them.
 *
 * A way is a list of choices, made in order: each gives a factor axes that no factor before it has.
 * Where the tensors of a call disagree there are several, and rules/call/call_cost.h prices them:
 *
 * - the choices as they are given, and with each one first that others contest;
 * - all operands stay as they are, and only the results move;
 * - one operand or result stays as it is, and the others move: first beside what was given, then
 *   beside the cheapest way so far, as long as that gets cheaper;
 * - in the end, axes of what shards would combine serve a dimension that each computes alone.
 *
 * Worked example, mesh (4, 2): the sum of x (4096, 1024) [- | x] over its rows, wanted [y]. The
 * columns take y, and x moves, 6 MB per device; or they take x, and the sum moves, 1.5 kB.
 */
#ifndef DISTIR_RULES_CALL_WAYS_H_
#define DISTIR_RULES_CALL_WAYS_H_

#include <vector>

#include "rules/call/projection.h"

namespace distir::rules {

class CallCost;

/*! \brief A factor and the axes that some tensor gives it. */
struct FactorChoice {
  size_t factor;
  mesh::AxisList axes;
  double priority;
};

/*! \brief Gives factors their axes in the order of the choices; no axis serves two. */
FactorShardings Assign(const FactorRule& rule, const std::vector<FactorChoice>& choices);

/*! \brief Clears factors, those that were chosen last first, until no two dimensions nest the same
 * factors in opposite orders, which has no placement on one mesh. */
void DropDisordered(const FactorRule& rule, const std::vector<int>& chosen,
                    FactorShardings* factors);

/*! \brief True if no operand has an element for each of this many shards of a factor along which
 * elements move: every shard of the result takes its elements from whole operands, or from tensors
 * that these are parts of (rules/parts.h). */
bool HasOnlyShortOperands(const FactorRule& rule, size_t factor, int64_t shards);

/*! \brief Axes that one tensor of a call gives the factors. */
struct TensorChoice {
  const TensorFactors* tensor;
  const FactorShardings* factors;  // empty: none
  double elements;
  bool is_result;
};

/*!
 * \brief The cheapest way of a call; of equals, the choices as they are given.
 *
 * \param choices One per factor that may be sharded.
 * \param tensors What each tensor gives the factors.
 * \param is_final False while tensors that have no axes may still get them. True: those stay
 * replicated in a way in which they stay as they are, unless the call combines shards, or has
 * statistics of them, whose work that would repeat on all devices.
 */
std::vector<FactorChoice> CheapestWay(const FactorRule& rule, std::vector<FactorChoice> choices,
                                      const std::vector<TensorChoice>& tensors, bool is_final,
                                      const CallCost& cost);

}  // namespace distir::rules
#endif  // DISTIR_RULES_CALL_WAYS_H_
