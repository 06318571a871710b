/*!
 * \file rules/call/call_cost.h
 * \brief Cost of one way to compute a call (rules/call/ways.h chooses among ways by it).
 *
 * A way is the shardings of a rule's factors. It costs the redistributions of the operands, as
 * planned (planning/planner.h), what the shards of decomposed factors get from each other, and what
 * leads from the result, which may be partial, to where it is wanted.
 *
 * Worked example: x (64, 8192) sharded [x | -] times w (8192, 8192) sharded [x | -] on 8 devices,
 * the result wanted [x | -]. Rows over x: w is gathered, 7/8 of 8192 x 8192. The contracted
 * dimension over x: x moves by an all-to-all and the partial result is reduce-scattered, together
 * less than 64 x 8192: that way wins.
 */
#ifndef DISTIR_RULES_CALL_CALL_COST_H_
#define DISTIR_RULES_CALL_CALL_COST_H_

#include <utility>
#include <vector>

#include "cost/cluster.h"
#include "planning/planner.h"
#include "rules/call/projection.h"

namespace distir::rules {

/*! \brief The tensors of a call, on one side of it. */
struct PricedTensors {
  std::vector<const mesh::Sharding*> shardings;  // null: free to place
  std::vector<planning::TensorSize> sizes;       // of the whole tensors

  void Add(const mesh::Sharding* sharding, const Sizes& dims, double bytes);
};

/*! \brief Result `result` of a rule as its shards compute it: partial over the axes of factors that
 * are combined. A decomposed factor counts as one that is: it sends about as much. */
mesh::Sharding ComputedResult(const FactorRule& rule, size_t result,
                              const FactorShardings& factors);

class CallCost {
 public:
  /*! \param operands, results As they are, and as they are wanted. */
  CallCost(planning::Planner* planner, const mesh::Mesh& mesh, const FactorRule& rule,
           PricedTensors operands, PricedTensors results)
      : planner_(*planner),
        mesh_(mesh),
        rule_(rule),
        operands_(std::move(operands)),
        results_(std::move(results)) {}

  /*! \brief Seconds that a way takes on top of its computation. */
  double Seconds(const FactorShardings& factors) const;

  /*! \brief Seconds of the exchange between shards of decomposed factors alone. */
  double SecondsBetweenShards(const FactorShardings& factors) const;

  /*!
   * \brief If the call needs all of a dimension that an operand has sharded, or can only be sharded
   * along its major parts, offers its axes to the parallel factors of known size that they divide,
   * one at a time, to the factor with which the call is cheapest, if it is cheaper so than with the
   * axis gathered.
   *
   * A sort along dimension 0 of [x|y] has its result wanted as [x|y]: x moves behind y by an
   * all-to-all and back by another, and no device sorts what others sort.
   * \param preferred A factor that takes the first axis if others are no cheaper. The next axes
   * prefer the factor of the one before.
   * \return The factors that have more axes than before.
   */
  std::vector<int> Rehome(FactorShardings* factors, int preferred = kNoFactor) const;

  /*! \brief All ways to Rehome that differ in the factor of the first axis, cheapest first. */
  std::vector<FactorShardings> Rehomed(const FactorShardings& factors) const;

 private:
  static constexpr int kNoFactor = -1;

  struct Home {
    int factor;
    double seconds;  // of the call
  };
  /*! \brief The factors that may have an axis which no factor has, and with which the call is
   * cheaper so, cheapest first. */
  std::vector<Home> Homes(const FactorShardings& factors, const mesh::AxisRef& axis,
                          int preferred) const;
  /*! \brief The axes that operands have and no factor has: those of a dimension that needs
   * replication, or is a minor part of another one. */
  mesh::AxisList Homeless(const FactorShardings& factors) const;
  double SecondsToMove(const mesh::Sharding& from, const mesh::Sharding& to,
                       const planning::TensorSize& size) const;

  planning::Planner& planner_;
  const mesh::Mesh& mesh_;
  const FactorRule& rule_;
  const PricedTensors operands_, results_;
};

}  // namespace distir::rules
#endif  // DISTIR_RULES_CALL_CALL_COST_H_
