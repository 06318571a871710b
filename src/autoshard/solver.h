/*!
 * \file autoshard/solver.h
 * \brief Solves a problem: a choice, a lower bound of all choices, and so a gap.
 *
 * The problem is reduced (reduction.h). Then rounds follow until the bound meets the cost, or
 * nearly so: message passing raises the bound (dual.h) while another thread searches (search.h);
 * strategies that the bound excludes are removed and the rest is reduced again; what is small is
 * searched completely (branch.h). A round takes up to twice the work of the one before. The result
 * depends on the number of rounds alone, unless the solver is stopped.
 */
#ifndef DISTIR_AUTOSHARD_SOLVER_H_
#define DISTIR_AUTOSHARD_SOLVER_H_

#include <cstdint>
#include <functional>

#include "autoshard/problem.h"

namespace distir::autoshard {

struct Solution {
  /*! \brief Empty if none is known. */
  Choice choice;
  int64_t cost = kInfinite;
  /*! \brief No choice costs less; -kInfinite before any bound, kInfinite if none is allowed. */
  int64_t bound = -kInfinite;
  bool is_optimal() const { return bound >= cost; }
};

/*!
 * \param problem Costs that add up to less than kInfinite where they are not forbidden.
 * \param rounds Most rounds.
 * \param gap By which part of its cost the choice may exceed the bound: then no round follows.
 * \param stop Asked now and then with the best so far, by this thread; true ends the search.
 * \param mixes Whether choices between which a limit lies are mixed (mixing.h). Without, another
 * choice may be found.
 */
Solution Solve(const Problem& problem, int32_t rounds, double gap,
               const std::function<bool(const Solution&)>& stop, bool mixes = true);

}  // namespace distir::autoshard

#endif  // DISTIR_AUTOSHARD_SOLVER_H_
