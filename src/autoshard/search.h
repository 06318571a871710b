/*!
 * \file autoshard/search.h
 * \brief Local search by block moves: nodes that form a tree are chosen again at once, exactly.
 *
 * A block grows from a node, by neighbours that have one neighbour in it. With all other nodes
 * fixed, dynamic programming finds its best choice. If that exceeds a limit, memory at the worst
 * time gets the least price at which the choice is no better than the present one (a secant step of
 * the Lagrangian dual), and the block is solved again. Costs are disturbed by random amounts that
 * shrink over a run (simulated annealing), so that the search leaves local optima.
 */
#ifndef DISTIR_AUTOSHARD_SEARCH_H_
#define DISTIR_AUTOSHARD_SEARCH_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "autoshard/graph.h"
#include "autoshard/random.h"

namespace distir::autoshard {

class Search {
 public:
  Search(const Graph& graph, uint64_t seed);

  /*! \brief Starts from a choice, which may exceed limits and be forbidden. */
  void Start(const Choice& choice);
  /*!
   * \brief Makes moves.
   * \param moves How many.
   * \param heat By how much the cost may rise in one move, at first; falls to `cold` in the end.
   * \param stop Asked now and then.
   */
  void Run(int64_t moves, double heat, double cold, const std::function<bool()>& stop);

  /*! \brief True if a choice within all limits is known. */
  bool is_feasible() const { return !best_.empty(); }
  /*! \brief The best choice within all limits. */
  const Choice& best() const { return best_; }
  double best_cost() const { return best_cost_; }
  const Choice& current() const { return current_; }
  double current_cost() const { return cost_; }
  /*! \brief Memory beyond limits, summed over times. */
  double excess() const { return excess_; }

 private:
  struct Member {
    int32_t node;
    int32_t parent;        // place in the block; -1 for the first
    const Arc* to_parent;  // of this node
    size_t costs;          // where its costs start
    size_t choices;        // where the best strategies for its parent's start
  };

  void Grow(int32_t seed, int32_t most);
  void Solve();
  /*! \brief Moves a block; at `time`, unless it is negative, memory has the price weight_. */
  void Move(int32_t seed, int32_t most, int32_t time, double heat);
  /*! \brief Changes the strategy of a node; returns by how much the excess grows. */
  double Switch(int32_t v, int32_t to);
  int32_t WorstTime(int64_t* excess) const;
  void Remember();
  /*! \brief Gives times that exceed their limit the price weight_, others none. */
  void PriceExcess();

  const Graph& graph_;
  Random random_;
  std::vector<double> price_sums_;
  Choice current_;
  double cost_ = 0;
  double excess_ = 0;
  bool is_lenient_ = false;  // excess may grow, at a cost
  double weight_ = 0;        // price of memory at times that exceed their limit
  std::vector<int64_t> used_;
  Choice best_;
  double best_cost_ = 0;

  // Of the current block.
  std::vector<Member> block_;
  std::vector<int32_t> stamp_;       // of nodes in the block
  std::vector<int32_t> neighbours_;  // in the block, of nodes beside it
  std::vector<int32_t> seen_;
  int32_t round_ = 0;
  std::vector<double> costs_;
  std::vector<double> fixed_;
  std::vector<int32_t> choices_;
  std::vector<int32_t> solution_;
  std::vector<std::pair<int32_t, double>> extra_;  // times and their prices
  int32_t first_time_ = 0;
  int32_t last_time_ = 0;
};

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_SEARCH_H_
