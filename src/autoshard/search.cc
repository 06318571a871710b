// Improves a choice of strategies by local search: chooses the nodes of a tree again, at once.
#include "autoshard/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace distir::autoshard {

namespace {

/*! \brief Most times that a block is solved again with higher prices. */
constexpr int32_t kMostPrices = 8;
/*! \brief Moves between two questions whether to stop. */
constexpr int64_t kBetweenStops = 64;
/*! \brief Price of all excess at first and at last, relative to the cost, and for which part of a
 * run it rises. */
constexpr double kFirstWeight = 1e-4;
constexpr double kLastWeight = 1e3;
constexpr double kLenientPart = 0.7;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Search::Search(const Graph& graph, uint64_t seed)
    : graph_(graph),
      random_(seed),
      stamp_(graph.size(), 0),
      neighbours_(graph.size(), 0),
      seen_(graph.size(), 0) {}

void Search::Start(const Choice& choice) {
  current_ = choice;
  std::vector<int64_t> change(graph_.times() + 1, 0);
  double cost = graph_.constant();
  for (int32_t v = 0; v < graph_.size(); ++v) {
    cost += graph_.CostsOf(v)[choice[v]];
    for (const Arc& arc : graph_.ArcsOf(v)) {
      if (arc.other < v) cost += arc.rows[choice[arc.other] * graph_.SizeOf(v) + choice[v]];
    }
    for (const Usage& usage : graph_.UsagesOf(v)) {
      change[usage.begin] += usage.amounts[choice[v]];
      change[usage.end] -= usage.amounts[choice[v]];
    }
  }
  cost_ = cost;
  used_.assign(graph_.times(), 0);
  excess_ = 0;
  int64_t used = 0;
  for (int32_t time = 0; time < graph_.times(); ++time) {
    used += change[time];
    used_[time] = used;
    excess_ += static_cast<double>(std::max<int64_t>(0, used - graph_.limits()[time]));
  }
  Remember();
}

void Search::Remember() {
  if (excess_ > 0 || cost_ == kInfinity) return;
  if (best_.empty() || cost_ < best_cost_) {
    best_ = current_;
    best_cost_ = cost_;
  }
}

double Search::Switch(int32_t v, int32_t to) {
  const int32_t from = current_[v];
  double growth = 0;
  for (const Usage& usage : graph_.UsagesOf(v)) {
    const int64_t change = usage.amounts[to] - usage.amounts[from];
    if (change == 0) continue;
    first_time_ = std::min(first_time_, usage.begin);
    last_time_ = std::max(last_time_, usage.end);
    int64_t over = 0;
    const int64_t* limits = graph_.limits().data();
    int64_t* used = used_.data();
    for (int32_t time = usage.begin; time < usage.end; ++time) {
      const int64_t before = used[time] - limits[time];
      const int64_t after = before + change;
      used[time] += change;
      over += (after > 0 ? after : 0) - (before > 0 ? before : 0);
    }
    growth += static_cast<double>(over);
  }
  current_[v] = to;
  return growth;
}

void Search::Grow(int32_t seed, int32_t most) {
  ++round_;
  block_.clear();
  std::vector<std::pair<int32_t, int32_t>> border;  // nodes, and places of their parents
  border.emplace_back(seed, -1);
  while (!border.empty() && static_cast<int32_t>(block_.size()) < most) {
    const int32_t at = random_.Below(static_cast<int32_t>(border.size()));
    const auto [v, parent] = border[at];
    border[at] = border.back();
    border.pop_back();
    if (seen_[v] == round_ && neighbours_[v] > 1) continue;
    const auto place = static_cast<int32_t>(block_.size());
    const Arc* to_parent = nullptr;
    stamp_[v] = round_;
    for (const Arc& arc : graph_.ArcsOf(v)) {
      if (stamp_[arc.other] == round_) {
        to_parent = &arc;
        continue;
      }
      if (seen_[arc.other] != round_) {
        seen_[arc.other] = round_;
        neighbours_[arc.other] = 0;
      }
      if (++neighbours_[arc.other] == 1) border.emplace_back(arc.other, place);
    }
    block_.push_back({v, parent, to_parent, 0, 0});
  }
}

void Search::Solve() {
  // Costs of the block's nodes with everything beside it; prices of times come on top.
  size_t next = 0;
  size_t next_choice = 0;
  costs_ = fixed_;
  for (Member& member : block_) {
    const int32_t own = graph_.SizeOf(member.node);
    double* cost = costs_.data() + next;
    member.costs = next;
    next += own;
    for (const Usage& usage : graph_.UsagesOf(member.node)) {
      double price = 0;
      for (const auto& [time, extra] : extra_) {
        if (usage.begin <= time && time < usage.end) price += extra;
      }
      if (price == 0) continue;
      for (int32_t i = 0; i < own; ++i) cost[i] += price * static_cast<double>(usage.amounts[i]);
    }
    if (member.parent < 0) continue;
    member.choices = next_choice;
    next_choice += graph_.SizeOf(member.to_parent->other);
  }
  choices_.resize(next_choice);
  for (size_t m = block_.size(); m-- > 1;) {
    const Member& member = block_[m];
    const int32_t own = graph_.SizeOf(member.node);
    const double* cost = costs_.data() + member.costs;
    double* parent = costs_.data() + block_[member.parent].costs;
    const int32_t parents = graph_.SizeOf(member.to_parent->other);
    for (int32_t j = 0; j < parents; ++j) {
      const double* row = member.to_parent->rows + static_cast<size_t>(j) * own;
      double least = kInfinity;
      int32_t best = 0;
      for (int32_t i = 0; i < own; ++i) {
        const double sum = cost[i] + row[i];
        if (sum < least) {
          least = sum;
          best = i;
        }
      }
      parent[j] += least;
      choices_[member.choices + j] = best;
    }
  }
  solution_.resize(block_.size());
  for (size_t m = 0; m < block_.size(); ++m) {
    const Member& member = block_[m];
    if (member.parent >= 0) {
      solution_[m] = choices_[member.choices + solution_[member.parent]];
      continue;
    }
    const double* cost = costs_.data() + member.costs;
    solution_[m] =
        static_cast<int32_t>(std::min_element(cost, cost + graph_.SizeOf(member.node)) - cost);
  }
}

int32_t Search::WorstTime(int64_t* excess) const {
  int32_t worst = -1;
  *excess = 0;
  for (int32_t time = first_time_; time < last_time_; ++time) {
    const int64_t over = used_[time] - graph_.limits()[time];
    if (over > *excess) {
      *excess = over;
      worst = time;
    }
  }
  return worst;
}

void Search::Move(int32_t seed, int32_t most, int32_t time, double heat) {
  Grow(seed, most);
  // Costs of each strategy with everything beside the block, without and with noise.
  fixed_.clear();
  std::vector<double> plain;
  for (const Member& member : block_) {
    const int32_t v = member.node;
    const int32_t own = graph_.SizeOf(v);
    const size_t first = fixed_.size();
    fixed_.insert(fixed_.end(), graph_.CostsOf(v), graph_.CostsOf(v) + own);
    double* cost = fixed_.data() + first;
    for (const Arc& arc : graph_.ArcsOf(v)) {
      if (stamp_[arc.other] == round_) continue;
      const double* row = arc.rows + static_cast<size_t>(current_[arc.other]) * own;
      for (int32_t i = 0; i < own; ++i) cost[i] += row[i];
    }
  }
  plain = fixed_;
  if (heat > 0) {
    for (double& cost : fixed_) cost -= heat * std::log(random_.Unit());
  }
  if (!price_sums_.empty()) {
    size_t next = 0;
    for (const Member& member : block_) {
      const int32_t own = graph_.SizeOf(member.node);
      for (const Usage& usage : graph_.UsagesOf(member.node)) {
        const double price = price_sums_[usage.end] - price_sums_[usage.begin];
        if (price == 0) continue;
        for (int32_t i = 0; i < own; ++i)
          fixed_[next + i] += price * static_cast<double>(usage.amounts[i]);
      }
      next += own;
    }
  }
  const auto cost_of = [&](const auto& strategy) {
    double sum = 0;
    size_t next = 0;
    for (size_t m = 0; m < block_.size(); ++m) {
      const Member& member = block_[m];
      const int32_t own = graph_.SizeOf(member.node);
      sum += plain[next + strategy(m)];
      if (member.parent >= 0) {
        const size_t row = static_cast<size_t>(strategy(member.parent)) * own;
        sum += member.to_parent->rows[row + strategy(m)];
      }
      next += own;
    }
    return sum;
  };
  std::vector<int32_t> before(block_.size());
  for (size_t m = 0; m < block_.size(); ++m) before[m] = current_[block_[m].node];
  const double cost_before = cost_of([&](size_t m) { return before[m]; });
  const double excess_before = excess_;
  extra_.clear();
  if (time >= 0) extra_.emplace_back(time, weight_);
  for (int32_t attempt = 0; attempt <= kMostPrices; ++attempt) {
    Solve();
    if (solution_ == before) return;
    first_time_ = graph_.times();
    last_time_ = 0;
    double growth = 0;
    for (size_t m = 0; m < block_.size(); ++m) {
      if (solution_[m] != before[m]) growth += Switch(block_[m].node, solution_[m]);
    }
    const double cost = cost_of([&](size_t m) { return solution_[m]; });
    // The first choice may be forbidden, which nothing is worse than.
    const double gain = cost_before == kInfinity ? kInfinity : cost_before - cost;
    const double slack = heat > 0 ? -heat * std::log(random_.Unit()) : 0;
    const bool is_better = is_lenient_ ? gain - weight_ * growth + slack >= 0
                                       : growth < 0 || (growth == 0 && gain + slack >= 0);
    if (cost < kInfinity && is_better) {
      cost_ -= gain;
      excess_ = std::max(0.0, excess_before + growth);
      if (gain == kInfinity) Start(Choice(current_));
      Remember();
      return;
    }
    int64_t over = 0;
    const int32_t worst = growth > 0 ? WorstTime(&over) : -1;
    const int64_t used = worst >= 0 ? used_[worst] : 0;
    for (size_t m = 0; m < block_.size(); ++m) Switch(block_[m].node, before[m]);
    if (is_lenient_ || worst < 0 || cost == kInfinity) return;
    const auto grown = static_cast<double>(used - used_[worst]);
    if (grown <= 0) return;
    // The price at which this solution is no better than the present one.
    const double lost = gain > 0 && gain < kInfinity ? gain : weight_ * grown;
    extra_.emplace_back(worst, std::max(lost * (1 + 1e-9) / grown, time >= 0 ? weight_ : 0.0));
  }
}

void Search::PriceExcess() {
  price_sums_.assign(1, 0.0);
  for (int32_t time = 0; time < graph_.times(); ++time) {
    const double price = used_[time] > graph_.limits()[time] ? weight_ : 0.0;
    price_sums_.push_back(price_sums_.back() + price);
  }
}

void Search::Run(int64_t moves, double heat, double cold, const std::function<bool()>& stop) {
  if (graph_.size() == 0) return;
  price_sums_.clear();
  // From a choice that exceeds limits, excess costs more and more until there is none.
  is_lenient_ = excess_ > 0 && cost_ < kInfinity;
  const double first_weight =
      is_lenient_ ? kFirstWeight * std::max(1.0, std::abs(cost_)) / excess_ : 0;
  for (int64_t move = 0; move < moves; ++move) {
    if (move % kBetweenStops == 0 && stop()) return;
    const double progress = static_cast<double>(move) / static_cast<double>(moves);
    const double warm = heat > 0 ? heat * std::pow(cold / heat, progress) : 0;
    const int32_t most = 1 << random_.Below(7);
    if (excess_ == 0 || progress > kLenientPart) {
      is_lenient_ = false;
      price_sums_.clear();
    }
    if (is_lenient_) {
      weight_ = first_weight * std::pow(kLastWeight / kFirstWeight, progress / kLenientPart);
      if (move % kBetweenStops == 0) PriceExcess();
    }
    if (excess_ == 0 || is_lenient_) {
      Move(random_.Below(graph_.size()), most, -1, warm);
      continue;
    }
    first_time_ = 0;
    last_time_ = graph_.times();
    int64_t over = 0;
    const int32_t worst = WorstTime(&over);
    weight_ = 1e3 * std::max(1.0, std::abs(cost_)) / static_cast<double>(over);
    Move(random_.Below(graph_.size()), most, worst, warm);
  }
}

}  // namespace distir::autoshard
