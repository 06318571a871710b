// Computes lower bounds by message passing, with prices for memory (Lagrange multipliers).
#include "autoshard/dual.h"

#include <algorithm>
#include <limits>

namespace distir::autoshard {

namespace {

/*! \brief Updates of prices without a better bound after which steps become shorter. */
constexpr int32_t kPatience = 10;

}  // namespace

Dual::Dual(const Graph& graph)
    : graph_(graph),
      messages_(graph.messages(), 0.0),
      bounds_(graph.strategies(), -std::numeric_limits<double>::infinity()),
      prices_(graph.times(), 0.0),
      choice_(graph.size(), 0),
      least_(graph.size(), 0) {
  if (graph.size() > 0) costs_.assign(graph.CostsOf(0), graph.CostsOf(0) + graph.strategies());
  nodes_ = costs_;
  // Bounds of single strategies count on edges that cost nothing at least.
  for (int32_t v = 0; v < graph.size(); ++v) {
    const int32_t own = graph.SizeOf(v);
    double* node = nodes_.data() + graph.First(v);
    for (const Arc& arc : graph.ArcsOf(v)) {
      if (arc.other > v) continue;
      const size_t entries = static_cast<size_t>(own) * graph.SizeOf(arc.other);
      const double least = *std::min_element(arc.rows, arc.rows + entries);
      for (int32_t i = 0; i < own; ++i) {
        messages_[arc.mine + i] = least;
        node[i] += least;
      }
    }
  }
}

double Dual::PricedLimits() const {
  double sum = 0;
  for (int32_t time = 0; time < graph_.times(); ++time) {
    if (prices_[time] > 0) sum += prices_[time] * static_cast<double>(graph_.limits()[time]);
  }
  return sum;
}

void Dual::Pass() {
  const int32_t size = graph_.size();
  const double base = graph_.constant() - PricedLimits();
  // The bound of all nodes but those visited, which is corrected node by node.
  double total = base;
  for (int32_t v = 0; v < size; ++v) {
    const auto first = nodes_.begin() + graph_.First(v);
    total += *std::min_element(first, first + graph_.SizeOf(v));
  }
  std::vector<double> pulled;
  std::vector<double> rounded;
  std::vector<double> shifted;
  for (int32_t n = 0; n < size; ++n) {
    const int32_t v = is_backward_ ? size - 1 - n : n;
    const int32_t own = graph_.SizeOf(v);
    double* node = nodes_.data() + graph_.First(v);
    const double before = *std::min_element(node, node + own);
    rounded.assign(costs_.begin() + graph_.First(v), costs_.begin() + graph_.First(v) + own);
    int32_t earlier = 0;
    int32_t later = 0;
    for (const Arc& arc : graph_.ArcsOf(v)) {
      const bool is_earlier = is_backward_ ? arc.other > v : arc.other < v;
      double* mine = messages_.data() + arc.mine;
      if (!is_earlier) {
        ++later;
        for (int32_t i = 0; i < own; ++i) rounded[i] += mine[i];
        continue;
      }
      ++earlier;
      const double* chosen = arc.rows + static_cast<size_t>(choice_[arc.other]) * own;
      for (int32_t i = 0; i < own; ++i) rounded[i] += chosen[i];
      pulled.assign(own, std::numeric_limits<double>::infinity());
      double* least = pulled.data();
      const double* others = messages_.data() + arc.others;
      for (int32_t j = 0; j < graph_.SizeOf(arc.other); ++j) {
        const double* row = arc.rows + static_cast<size_t>(j) * own;
        const double given = others[j];
        for (int32_t i = 0; i < own; ++i) {
          const double cost = row[i] - given;
          least[i] = cost < least[i] ? cost : least[i];
        }
      }
      for (int32_t i = 0; i < own; ++i) {
        node[i] += least[i] - mine[i];
        mine[i] = least[i];
      }
    }
    choice_[v] =
        static_cast<int32_t>(std::min_element(rounded.begin(), rounded.end()) - rounded.begin());
    double* least_node = std::min_element(node, node + own);
    least_[v] = static_cast<int32_t>(least_node - node);
    const double least = *least_node;
    total += least - before;
    double* known = bounds_.data() + graph_.First(v);
    for (int32_t i = 0; i < own; ++i) known[i] = std::max(known[i], total + (node[i] - least));
    if (later == 0) continue;
    const double share = 1.0 / std::max(earlier, later);
    shifted.assign(node, node + own);
    for (const Arc& arc : graph_.ArcsOf(v)) {
      const bool is_earlier = is_backward_ ? arc.other > v : arc.other < v;
      if (is_earlier) continue;
      double* mine = messages_.data() + arc.mine;
      for (int32_t i = 0; i < own; ++i) {
        const double moved = (shifted[i] - least) * share;
        mine[i] -= moved;
        node[i] -= moved;
      }
    }
  }
  bound_ = base;
  for (int32_t v = 0; v < size; ++v) {
    const auto first = nodes_.begin() + graph_.First(v);
    bound_ += *std::min_element(first, first + graph_.SizeOf(v));
  }
  is_backward_ = !is_backward_;
  if (!has_bound_ || bound_ > best_bound_) {
    best_bound_ = bound_;
    has_bound_ = true;
  }
}

void Dual::AddPrices(double sign) {
  std::vector<double> sums(graph_.times() + 1, 0.0);
  for (int32_t time = 0; time < graph_.times(); ++time) sums[time + 1] = sums[time] + prices_[time];
  for (int32_t v = 0; v < graph_.size(); ++v) {
    double* cost = costs_.data() + graph_.First(v);
    double* node = nodes_.data() + graph_.First(v);
    for (const Usage& usage : graph_.UsagesOf(v)) {
      const double price = sign * (sums[usage.end] - sums[usage.begin]);
      if (price == 0) continue;
      for (int32_t i = 0; i < graph_.SizeOf(v); ++i) {
        const double change = price * static_cast<double>(usage.amounts[i]);
        cost[i] += change;
        node[i] += change;
      }
    }
  }
}

void Dual::UpdatePrices(double target) {
  if (graph_.times() == 0) return;
  std::vector<double> excess(graph_.times() + 1, 0.0);
  for (int32_t v = 0; v < graph_.size(); ++v) {
    for (const Usage& usage : graph_.UsagesOf(v)) {
      const auto amount = static_cast<double>(usage.amounts[choice_[v]]);
      excess[usage.begin] += amount;
      excess[usage.end] -= amount;
    }
  }
  double used = 0;
  double norm = 0;
  for (int32_t time = 0; time < graph_.times(); ++time) {
    used += excess[time];
    excess[time] = used - static_cast<double>(graph_.limits()[time]);
    if (excess[time] > 0 || prices_[time] > 0) norm += excess[time] * excess[time];
  }
  if (norm == 0) return;
  if (best_bound_ > step_bound_) {
    step_bound_ = best_bound_;
    since_better_ = 0;
  } else if (++since_better_ > kPatience) {
    step_ *= 0.8;
    since_better_ = 0;
  }
  const double gap = std::max(target - bound_, 1e-6 * std::abs(target));
  const double length = step_ * gap / norm;
  std::vector<double> changes(graph_.times(), 0.0);
  for (int32_t time = 0; time < graph_.times(); ++time) {
    const double price = std::max(0.0, prices_[time] + length * excess[time]);
    changes[time] = price - prices_[time];
  }
  std::vector<double> prices = prices_;
  prices_ = changes;
  AddPrices(1.0);
  for (int32_t time = 0; time < graph_.times(); ++time)
    prices_[time] = prices[time] + changes[time];
}

}  // namespace distir::autoshard
