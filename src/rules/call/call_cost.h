/*!
 * \file rules/call/call_cost.h
 * \brief Cost of one way to compute a call, and the cheapest way if factors want the same axes.
 *
 * A way is the shardings of a rule's factors. It costs the redistributions of the operands, the
 * reduction of a partial result, what the shards of decomposed factors get from each other, and the
 * redistribution of the result to where it is wanted.
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
#include "rules/call/projection.h"

namespace distir::rules {

/*! \brief A factor and the axes that some tensor gives it. */
struct FactorChoice {
  size_t factor;
  mesh::AxisList axes;
  double priority;
};

class CallCost {
 public:
  /*!
   * \param operands Shardings of the operands; null: free to place.
   * \param results Wanted shardings of the results; null: any.
   * \param operand_bytes, result_bytes Of the whole tensors.
   */
  CallCost(const cost::Cluster& cluster, const mesh::Mesh& mesh, const FactorRule& rule,
           std::vector<const mesh::Sharding*> operands, std::vector<const mesh::Sharding*> results,
           std::vector<double> operand_bytes, std::vector<double> result_bytes)
      : cluster_(cluster),
        mesh_(mesh),
        rule_(rule),
        operands_(std::move(operands)),
        results_(std::move(results)),
        operand_bytes_(std::move(operand_bytes)),
        result_bytes_(std::move(result_bytes)) {}

  /*! \brief Seconds that a way takes on top of its computation. */
  double Seconds(const FactorShardings& factors) const;

  /*!
   * \brief If several choices want an axis, moves the one to the front that makes the call
   * cheapest; of equals, the first. Otherwise leaves the order.
   */
  void Order(std::vector<FactorChoice>* choices) const;

  /*!
   * \brief If the call needs all of a dimension that an operand has sharded, offers its axes to
   * the parallel factors of known size that they divide, one at a time, to the factor with which
   * the call is cheapest, if it is cheaper so than with the axis gathered.
   *
   * A sort along dimension 0 of [x|y] has its result wanted as [x|y]: x moves behind y by an
   * all-to-all and back by another, and no device sorts what others sort.
   * \return The factors that have more axes than before.
   */
  std::vector<int> Rehome(FactorShardings* factors) const;

 private:
  /*! \brief The axes that operands have on dimensions that need replication, if no factor has
   * them. */
  mesh::AxisList Homeless(const FactorShardings& factors) const;
  /*! \brief Seconds of the exchange between shards of decomposed factors. */
  double SecondsBetweenShards(const FactorShardings& factors) const;
  double SecondsToMove(const mesh::Sharding& from, const mesh::Sharding& to, double bytes) const;

  const cost::Cluster& cluster_;
  const mesh::Mesh& mesh_;
  const FactorRule& rule_;
  std::vector<const mesh::Sharding*> operands_, results_;
  std::vector<double> operand_bytes_, result_bytes_;
};

/*! \brief Gives factors their axes in the order of the choices; no axis serves two. */
FactorShardings Assign(const FactorRule& rule, const std::vector<FactorChoice>& choices);

}  // namespace distir::rules
#endif  // DISTIR_RULES_CALL_CALL_COST_H_
