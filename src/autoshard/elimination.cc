// Eliminates a node with two edges: its least cost for each pair of its neighbours' strategies.
#include "autoshard/elimination.h"

#include <cstddef>

#include "autoshard/problem.h"

namespace distir::autoshard {

namespace {

/*! \brief Doubles kInfinite: it stays forbidden when allowed costs below zero are added. */
int64_t Forbidding(int64_t cost) { return cost >= kInfinite ? 2 * kInfinite : cost; }

int64_t CostAt(const Neighbour& neighbour, int32_t mine, int32_t others) {
  return neighbour.sight.costs == nullptr ? 0 : Forbidding(neighbour.sight.At(mine, others));
}

}  // namespace

Eliminated LeastOf(const std::vector<int64_t>& costs, const Neighbour& first,
                   const Neighbour& second) {
  Eliminated found;
  found.costs.assign(static_cast<size_t>(first.size) * second.size, kInfinite);
  found.best.assign(found.costs.size(), -1);
  std::vector<int64_t> row(second.size);
  for (size_t i = 0; i < costs.size(); ++i) {
    const auto mine = static_cast<int32_t>(i);
    for (int32_t b = 0; b < second.size; ++b) row[b] = CostAt(second, mine, b);
    for (int32_t a = 0; a < first.size; ++a) {
      const int64_t given = Forbidding(costs[i]) + CostAt(first, mine, a);
      int64_t* least = found.costs.data() + static_cast<size_t>(a) * second.size;
      int16_t* best = found.best.data() + static_cast<size_t>(a) * second.size;
      for (int32_t b = 0; b < second.size; ++b) {
        const int64_t cost = given + row[b];
        if (cost >= least[b]) continue;
        least[b] = cost;
        best[b] = static_cast<int16_t>(i);
      }
    }
  }
  return found;
}

}  // namespace distir::autoshard
