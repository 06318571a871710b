// Finds the period and count of repetitions in a sequence of numbers.
#include "outline/repeats.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace distir::outline {

namespace {

constexpr size_t kMostPeriods = 16;

/*! \brief Distances to the next equal item, commonest first. */
std::vector<size_t> CandidatePeriods(const std::vector<uint64_t>& items, size_t min_period) {
  std::unordered_map<uint64_t, size_t> last_place;
  std::unordered_map<size_t, size_t> votes;
  for (size_t i = 0; i < items.size(); ++i) {
    auto [found, is_new] = last_place.emplace(items[i], i);
    if (!is_new && i - found->second >= min_period) ++votes[i - found->second];
    found->second = i;
  }
  std::vector<std::pair<size_t, size_t>> ordered(votes.begin(), votes.end());
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  if (ordered.size() > kMostPeriods) ordered.resize(kMostPeriods);
  std::vector<size_t> periods;
  for (const auto& [period, votes_of_it] : ordered) periods.push_back(period);
  return periods;
}

bool IsBetter(const Repeats& one, const Repeats& other) {
  if (one.saved() != other.saved()) return one.saved() > other.saved();
  if (one.period != other.period) return one.period < other.period;
  return one.begin < other.begin;
}

}  // namespace

Repeats FindRepeats(const std::vector<uint64_t>& items, size_t min_period) {
  Repeats best;
  for (size_t period : CandidatePeriods(items, min_period)) {
    for (size_t begin = 0; begin + period < items.size();) {
      size_t equal = 0;
      while (begin + equal + period < items.size() &&
             items[begin + equal] == items[begin + equal + period])
        ++equal;
      const Repeats found{begin, begin + equal + period, period};
      if (found.saved() > 0 && (best.period == 0 || IsBetter(found, best))) best = found;
      begin += equal + 1;
    }
  }
  return best;
}

}  // namespace distir::outline
