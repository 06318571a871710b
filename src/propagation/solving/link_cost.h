/*!
 * \file propagation/solving/link_cost.h
 * \brief Prices links of a solved program, as emission computes them.
 */
#ifndef DISTIR_PROPAGATION_SOLVING_LINK_COST_H_
#define DISTIR_PROPAGATION_SOLVING_LINK_COST_H_

#include <vector>

#include "propagation/instances.h"
#include "propagation/solving/links_of_slots.h"
#include "rules/call/call_cost.h"
#include "rules/call/call_sharding.h"

namespace distir::propagation {

class LinkCost {
 public:
  LinkCost(Program* program, const LinksOfSlots& users, const dialect::MeshTable& meshes,
           planning::Planner* planner)
      : program_(*program), users_(users), meshes_(meshes), planner_(*planner) {}

  /*! \brief True if operands of a call have axes on dimensions that need replication, or are parts
   * of others, which no result has, and nobody states results. */
  bool HasUnusedAxes(const Link& link) const;

  /*! \brief Factors of a call with axes of its operands that it could not use, in all ways in which
   * these serve other dimensions (CallCost::Rehomed), if the results may lie anywhere. */
  std::vector<rules::FactorShardings> Rehomed(const Link& link) const;

  /*! \brief Seconds of what a link sends; 0 between meshes. */
  double Seconds(const Link& link) const;

  /*! \brief Prices the call that makes a value with the sharding that is stated of its only reader,
   * and leaves the value as it is computed then. */
  void PriceAsRead(int made, int read) const;

 private:
  struct Priced {
    rules::CallSharding sharding;
    double seconds;
  };
  /*! \param results What the results should have; null: anything. */
  rules::CallCost CostOf(const Link& link, int root,
                         const std::vector<const mesh::Sharding*>& results) const;
  Priced Price(const Link& link, int root, const std::vector<const mesh::Sharding*>& results) const;
  const mesh::Sharding* Placed(int operand, int root) const;
  double SecondsToMove(int root, const SlotState& slot, const mesh::Sharding& target) const;

  Program& program_;
  const LinksOfSlots& users_;
  const dialect::MeshTable& meshes_;
  planning::Planner& planner_;
};

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_SOLVING_LINK_COST_H_
