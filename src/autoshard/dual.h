/*!
 * \file autoshard/dual.h
 * \brief Computes a lower bound of all choices by message passing, with a price for memory at each
 * time.
 *
 * Sequential tree-reweighted message passing (TRW-S; Kolmogorov, "Convergent tree-reweighted
 * message passing for energy minimization", 2006), written as a reparametrisation: messages move
 * cost between an edge and its nodes, so that the sum of the least costs of all nodes and edges
 * bounds every choice from below, whatever the messages are. Memory beyond a limit costs the price
 * of its time (Lagrangian relaxation), which subgradient steps change.
 */
#ifndef DISTIR_AUTOSHARD_DUAL_H_
#define DISTIR_AUTOSHARD_DUAL_H_

#include <cstdint>
#include <vector>

#include "autoshard/graph.h"

namespace distir::autoshard {

class Dual {
 public:
  explicit Dual(const Graph& graph);

  /*! \brief Visits all nodes once, every second time backwards; keeps the best bound. */
  void Pass();
  /*! \brief Changes prices along the subgradient of the last pass.
   * \param target The cost that the bound should approach: that of the best choice known. */
  void UpdatePrices(double target);

  /*! \brief The best bound so far. */
  double bound() const { return best_bound_; }
  /*! \brief The bound of the last pass. */
  double current_bound() const { return bound_; }
  /*! \brief The choice that the last pass made on its way. */
  const Choice& choice() const { return choice_; }
  const std::vector<double>& prices() const { return prices_; }
  /*! \brief Best lower bound, by strategy, of the choices that have it. */
  const std::vector<double>& bounds() const { return bounds_; }

 private:
  void AddPrices(double sign);
  double PricedLimits() const;

  const Graph& graph_;
  std::vector<double> messages_;
  std::vector<double> costs_;  // of nodes with prices
  std::vector<double> nodes_;  // with prices and messages
  std::vector<double> bounds_;
  std::vector<double> prices_;
  Choice choice_;
  Choice least_;  // of each node alone
  bool is_backward_ = false;
  double bound_ = 0;
  double best_bound_ = 0;
  bool has_bound_ = false;
  double step_ = 1;
  double step_bound_ = 0;
  int32_t since_better_ = 0;
};

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_DUAL_H_
