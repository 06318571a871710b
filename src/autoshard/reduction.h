/*!
 * \file autoshard/reduction.h
 * \brief Makes a problem smaller without losing its best choice.
 *
 * Repeats until nothing changes:
 * - strategies that are forbidden, cannot fit into memory, or are dominated by another are removed;
 * - times that cannot exceed their limit, or are implied by another, are removed;
 * - edges between the same nodes are added up, and edges whose cost is a sum of a cost of either
 *   node disappear;
 * - a node that another one determines (for each strategy of that one, one of its own is allowed)
 *   becomes part of it, with its memory;
 * - a node without memory and at most two neighbours is eliminated: its best strategy is known for
 *   each pair of theirs.
 *
 * For a chain a-b-c without memory nothing remains: b goes into an edge a-c, c into costs of a.
 */
#ifndef DISTIR_AUTOSHARD_REDUCTION_H_
#define DISTIR_AUTOSHARD_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "autoshard/problem.h"

namespace distir::autoshard {

/*! \brief A smaller problem, and how its choices extend to those of the problem it was made from.
 */
class Reduction {
 public:
  explicit Reduction(Problem problem);

  /*! \brief False if no choice is allowed. */
  bool is_feasible() const { return is_feasible_; }
  const Problem& problem() const { return reduced_; }
  /*! \brief The best choice for the original problem, given one for the smaller one. */
  Choice Expand(const Choice& choice) const;
  /*! \brief The choice for the smaller problem that agrees with one for the original; -1 where its
   * strategy was removed. */
  Choice Restrict(const Choice& choice) const;

 private:
  friend class Reducer;

  /*! \brief Strategy of a removed node, as a function of others'. */
  struct Removed {
    int32_t node;
    int32_t first;   // -1 if there is none
    int32_t second;  // -1 if there is none
    int32_t stride;
    std::vector<int16_t> table;
  };

  bool is_feasible_ = true;
  Problem reduced_;
  size_t original_size_ = 0;
  std::vector<Removed> removed_;
  std::vector<int32_t> kept_;
  /*! \brief Original strategies of the nodes that are kept. */
  std::vector<std::vector<int16_t>> labels_;
};

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_REDUCTION_H_
