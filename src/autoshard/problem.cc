// Computes the cost of a choice of strategies, and whether it keeps the limits of memory.
#include "autoshard/problem.h"

namespace distir::autoshard {

int64_t CostOf(const Problem& problem, const Choice& choice) {
  int64_t cost = problem.constant;
  for (size_t v = 0; v < problem.nodes.size(); ++v)
    cost = AddCosts(cost, problem.nodes[v].costs[choice[v]]);
  for (const Edge& edge : problem.edges) {
    const size_t columns = problem.nodes[edge.to].costs.size();
    cost = AddCosts(cost, edge.costs[choice[edge.from] * columns + choice[edge.to]]);
  }
  return cost;
}

bool FitsMemory(const Problem& problem, const Choice& choice) {
  std::vector<int64_t> change(problem.limits.size() + 1, 0);
  for (size_t v = 0; v < problem.nodes.size(); ++v) {
    for (const Usage& usage : problem.nodes[v].usages) {
      change[usage.begin] += usage.amounts[choice[v]];
      change[usage.end] -= usage.amounts[choice[v]];
    }
  }
  int64_t used = 0;
  for (size_t time = 0; time < problem.limits.size(); ++time) {
    used += change[time];
    if (used > problem.limits[time]) return false;
  }
  return true;
}

}  // namespace distir::autoshard
