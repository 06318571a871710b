// Stores the nodes and edges of a problem in flat arrays.
#include "autoshard/graph.h"

#include <limits>

namespace distir::autoshard {

namespace {

double FloatOf(int64_t cost) {
  return cost >= kInfinite ? std::numeric_limits<double>::infinity() : static_cast<double>(cost);
}

}  // namespace

Graph::Graph(const Problem& problem) : problem_(problem), limits_(problem.limits) {
  first_.push_back(0);
  for (const Node& node : problem.nodes) {
    for (const int64_t cost : node.costs) costs_.push_back(FloatOf(cost));
    first_.push_back(costs_.size());
    work_ += node.costs.size() * (1 + node.usages.size());
  }
  size_t entries = 0;
  for (const Edge& edge : problem.edges) entries += 2 * edge.costs.size();
  work_ += entries + limits_.size();
  entries_.reserve(entries);
  arcs_.resize(problem.nodes.size());
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    const Edge& edge = problem.edges[e];
    const auto rows = static_cast<size_t>(SizeOf(edge.from));
    const auto columns = static_cast<size_t>(SizeOf(edge.to));
    const size_t to_from = messages_;
    const size_t to_to = messages_ + rows;
    messages_ += rows + columns;
    const auto index = static_cast<int32_t>(e);
    arcs_[edge.to].push_back({edge.from, index, to_to, to_from, entries_.data() + entries_.size()});
    for (const int64_t cost : edge.costs) entries_.push_back(FloatOf(cost));
    arcs_[edge.from].push_back({edge.to, index, to_from, to_to, entries_.data() + entries_.size()});
    for (size_t j = 0; j < columns; ++j) {
      for (size_t i = 0; i < rows; ++i) entries_.push_back(FloatOf(edge.costs[i * columns + j]));
    }
  }
}

}  // namespace distir::autoshard
