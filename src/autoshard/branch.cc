// Proves the optimum of a small problem by branch and bound.
#include "autoshard/branch.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "autoshard/graph.h"
#include "autoshard/reduction.h"

namespace distir::autoshard {

namespace {

/*! \brief Visits of all nodes per problem, at most. */
constexpr int32_t kMostPasses = 120;
/*! \brief Passes between two changes of prices, and between two looks at the bound. */
constexpr int32_t kBetweenPrices = 2;
constexpr int32_t kBetweenChecks = 20;
/*! \brief Relative gain of the bound below which more passes are not worth their time. */
constexpr double kLeastGain = 1e-4;
/*! \brief Work of a reduction, beside that of bounds. */
constexpr int64_t kReductionWork = 1'000;
/*! \brief Rounding errors of a bound, relative to its size and absolute. */
constexpr double kRelativeError = 1e-11;
constexpr double kAbsoluteError = 1e-6;

}  // namespace

bool Excludes(double bound, int64_t cost) {
  const double error = kAbsoluteError + kRelativeError * std::abs(bound);
  return bound - error > static_cast<double>(cost) - 1;
}

Problem Tighten(const Problem& problem, const Dual& dual, int64_t cost) {
  Problem tight = problem;
  size_t next = 0;
  for (Node& node : tight.nodes) {
    for (int64_t& own : node.costs) {
      if (Excludes(dual.bounds()[next++], cost)) own = kInfinite;
    }
  }
  return tight;
}

Choice Branch::Explore(const Problem& problem) {
  if (!is_complete_) return {};
  budget_ -= kReductionWork;
  if (budget_ < 0 || stop_()) {
    is_complete_ = false;
    return {};
  }
  const Reduction reduction(problem);
  if (!reduction.is_feasible()) return {};
  const Problem& reduced = reduction.problem();
  if (reduced.nodes.empty()) {
    if (reduced.constant >= cost_) return {};
    cost_ = reduced.constant;
    return reduction.Expand({});
  }
  const Choice found = ExploreReduced(reduced);
  return found.empty() ? Choice() : reduction.Expand(found);
}

Choice Branch::ExploreReduced(const Problem& problem) {
  Choice best;
  const Graph graph(problem);
  Dual dual(graph);
  const auto work = static_cast<int64_t>(graph.work());
  double last = 0;
  for (int32_t pass = 0; pass < kMostPasses; ++pass) {
    dual.Pass();
    budget_ -= work;
    if (Excludes(dual.bound(), cost_)) return best;
    if (pass % kBetweenPrices == 1) {
      const int64_t cost = CostOf(problem, dual.choice());
      if (cost < cost_ && FitsMemory(problem, dual.choice())) {
        cost_ = cost;
        best = dual.choice();
      }
      dual.UpdatePrices(static_cast<double>(
          cost_ < kInfinite ? cost_ : static_cast<int64_t>(2 * std::abs(dual.bound()) + 1)));
    }
    if (pass % kBetweenChecks == kBetweenChecks - 1) {
      if (pass >= kBetweenChecks && dual.bound() - last < kLeastGain * std::abs(last)) break;
      last = dual.bound();
    }
  }
  const Problem tight = cost_ < kInfinite ? Tighten(problem, dual, cost_) : problem;
  // Branches where fewest strategies are left, on those with the least bound first.
  size_t next = 0;
  size_t fewest = 0;
  int32_t node = -1;
  size_t first = 0;
  for (size_t v = 0; v < tight.nodes.size(); ++v) {
    const std::vector<int64_t>& costs = tight.nodes[v].costs;
    const auto left = static_cast<size_t>(
        std::count_if(costs.begin(), costs.end(), [](int64_t cost) { return cost < kInfinite; }));
    if (left == 0) return best;
    if (left > 1 && (node < 0 || left < fewest)) {
      fewest = left;
      node = static_cast<int32_t>(v);
      first = next;
    }
    next += costs.size();
  }
  const auto take = [&](const Problem& branch) {
    Choice found = Explore(branch);
    if (!found.empty()) best = std::move(found);
  };
  if (node < 0) {
    take(tight);
    return best;
  }
  std::vector<int32_t> order(tight.nodes[node].costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return dual.bounds()[first + a] < dual.bounds()[first + b];
  });
  for (const int32_t strategy : order) {
    if (tight.nodes[node].costs[strategy] >= kInfinite) continue;
    if (Excludes(dual.bounds()[first + strategy], cost_)) continue;
    Problem branch = tight;
    std::vector<int64_t>& costs = branch.nodes[node].costs;
    for (size_t i = 0; i < costs.size(); ++i) {
      if (static_cast<int32_t>(i) != strategy) costs[i] = kInfinite;
    }
    take(branch);
  }
  return best;
}

}  // namespace distir::autoshard
