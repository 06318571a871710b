/*!
 * \file autoshard/branch.h
 * \brief Branch and bound: complete search, where reductions and bounds leave little to decide.
 *
 * A strategy is chosen for one node; the rest is reduced, bounded by message passing and searched
 * in the same way. A branch ends when its bound shows that it has nothing better than what is
 * known.
 */
#ifndef DISTIR_AUTOSHARD_BRANCH_H_
#define DISTIR_AUTOSHARD_BRANCH_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "autoshard/dual.h"
#include "autoshard/problem.h"

namespace distir::autoshard {

/*! \brief True if a bound, computed in floats, shows that no choice costs less than `cost`. */
bool Excludes(double bound, int64_t cost);

/*! \brief A problem without the strategies that no choice cheaper than `cost` has. */
Problem Tighten(const Problem& problem, const Dual& dual, int64_t cost);

class Branch {
 public:
  /*!
   * \param cost Only cheaper choices are looked for.
   * \param budget How much work may be done: costs that are read.
   */
  Branch(int64_t cost, int64_t budget, std::function<bool()> stop)
      : cost_(cost), budget_(budget), stop_(std::move(stop)) {}

  /*!
   * \brief Searches all choices of a problem.
   * \return The best choice that is cheaper than what was known before; empty if there is none.
   */
  Choice Explore(const Problem& problem);
  /*! \brief False if the budget was used up, or the search was stopped. */
  bool is_complete() const { return is_complete_; }

 private:
  Choice ExploreReduced(const Problem& problem);

  int64_t cost_;
  int64_t budget_;
  std::function<bool()> stop_;
  bool is_complete_ = true;
};

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_BRANCH_H_
