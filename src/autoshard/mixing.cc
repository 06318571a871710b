// Mixes two choices at the place in the order of nodes that is best within the limits of memory.
#include "autoshard/mixing.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace distir::autoshard {

namespace {

/*! \brief Places that are tried in front of the last one that fits. */
constexpr size_t kMostPlaces = 8;

Choice Joined(const Choice& front, const Choice& back, size_t place) {
  Choice joined(front.begin(), front.begin() + static_cast<std::ptrdiff_t>(place));
  joined.insert(joined.end(), back.begin() + static_cast<std::ptrdiff_t>(place), back.end());
  return joined;
}

/*! \brief By place, the cost with `front` before it and `back` behind; kInfinite if forbidden. */
std::vector<int64_t> CostsByPlace(const Problem& problem, const Choice& front, const Choice& back) {
  const size_t size = problem.nodes.size();
  std::vector<int64_t> costs(size + 2, 0), forbidden(size + 2, 0);
  // The cost counts from one place to another.
  const auto add = [&](size_t begin, size_t end, int64_t cost) {
    std::vector<int64_t>& sums = cost >= kInfinite ? forbidden : costs;
    const int64_t amount = cost >= kInfinite ? 1 : cost;
    sums[begin] += amount;
    sums[end] -= amount;
  };
  for (size_t v = 0; v < size; ++v) {
    add(0, v + 1, problem.nodes[v].costs[back[v]]);
    add(v + 1, size + 1, problem.nodes[v].costs[front[v]]);
  }
  for (const Edge& edge : problem.edges) {
    const size_t columns = problem.nodes[edge.to].costs.size();
    const auto cost = [&](const Choice& from, const Choice& to) {
      return edge.costs[from[edge.from] * columns + to[edge.to]];
    };
    const size_t first = std::min(edge.from, edge.to), last = std::max(edge.from, edge.to);
    const bool is_forward = edge.from < edge.to;
    add(0, first + 1, cost(back, back));
    add(first + 1, last + 1, is_forward ? cost(front, back) : cost(back, front));
    add(last + 1, size + 1, cost(front, front));
  }
  int64_t cost = problem.constant, forbidden_here = 0;
  for (size_t place = 0; place <= size; ++place) {
    cost += costs[place];
    forbidden_here += forbidden[place];
    costs[place] = forbidden_here > 0 ? kInfinite : cost;
  }
  costs.resize(size + 1);
  return costs;
}

}  // namespace

Choice Mix(const Problem& problem, const Choice& fitting, const Choice& other, int64_t below) {
  Choice best;
  for (bool is_front : {true, false}) {  // where `other` stands
    const Choice& front = is_front ? other : fitting;
    const Choice& back = is_front ? fitting : other;
    const std::vector<int64_t> costs = CostsByPlace(problem, front, back);
    // The more nodes have the other choice, the more memory is needed, as a rule.
    const auto place_of = [&](size_t count) { return is_front ? count : costs.size() - 1 - count; };
    size_t fits = 0, exceeds = costs.size();
    while (exceeds - fits > 1) {
      const size_t middle = fits + (exceeds - fits) / 2;
      (FitsMemory(problem, Joined(front, back, place_of(middle))) ? fits : exceeds) = middle;
    }
    std::vector<size_t> counts;
    for (size_t count = 1; count <= fits; ++count) {
      if (costs[place_of(count)] < below) counts.push_back(count);
    }
    const size_t most = std::min(kMostPlaces, counts.size());
    std::partial_sort(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(most),
                      counts.end(),
                      [&](size_t a, size_t b) { return costs[place_of(a)] < costs[place_of(b)]; });
    for (size_t i = 0; i < most && costs[place_of(counts[i])] < below; ++i) {
      Choice joined = Joined(front, back, place_of(counts[i]));
      if (!FitsMemory(problem, joined)) continue;
      below = costs[place_of(counts[i])];
      best = std::move(joined);
    }
  }
  return best;
}

}  // namespace distir::autoshard
