// Drops memory limits at times that follow from the limits at other times.
#include "autoshard/times.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "autoshard/random.h"

namespace distir::autoshard {

namespace {

/*!
 * \brief Of times at which every strategy takes the same memory (in repeated layers), leaves the
 * one with the least limit. Times are compared by a random linear form of what strategies take.
 */
std::vector<int32_t> WithoutEqual(const std::vector<Node*>& nodes,
                                  const std::vector<int64_t>& limits, std::vector<int32_t> kept) {
  std::vector<uint64_t> change(limits.size() + 1, 0);
  Random random(1);
  for (const Node* node : nodes) {
    std::vector<uint64_t> factors;
    for (const Usage& usage : node->usages) {
      while (factors.size() < usage.amounts.size()) factors.push_back(random.Next());
      uint64_t form = 0;
      for (size_t i = 0; i < usage.amounts.size(); ++i)
        form += factors[i] * static_cast<uint64_t>(usage.amounts[i]);
      change[usage.begin] += form;
      change[usage.end] -= form;
    }
  }
  std::vector<uint64_t> forms(limits.size(), 0);
  uint64_t form = 0;
  for (size_t time = 0; time < limits.size(); ++time) forms[time] = form += change[time];
  std::unordered_map<uint64_t, int32_t> least;
  for (const int32_t time : kept) {
    const auto [known, is_new] = least.emplace(forms[time], time);
    if (!is_new && limits[time] < limits[known->second]) known->second = time;
  }
  const auto is_equal = [&](int32_t time) { return least.at(forms[time]) != time; };
  kept.erase(std::remove_if(kept.begin(), kept.end(), is_equal), kept.end());
  return kept;
}

}  // namespace

std::vector<bool> CompressTimes(const std::vector<Node*>& nodes, std::vector<int64_t>* limits,
                                bool* is_feasible) {
  const size_t times = limits->size();
  std::vector<bool> changed(nodes.size(), false);
  std::vector<int64_t> least(times + 1, 0);
  std::vector<int64_t> most(times + 1, 0);
  std::vector<int32_t> begins(times + 1, 0);
  std::vector<int32_t> ends(times + 1, 0);
  for (Node* node : nodes) {
    for (Usage& usage : node->usages) {
      const auto [low, high] = std::minmax_element(usage.amounts.begin(), usage.amounts.end());
      const int64_t fixed = *low;
      const int64_t varying = *high - *low;
      least[usage.begin] += fixed;
      least[usage.end] -= fixed;
      most[usage.begin] += varying;
      most[usage.end] -= varying;
      for (int64_t& amount : usage.amounts) amount -= fixed;
      if (varying > 0) {
        ++begins[usage.begin];
        ++ends[usage.end];
      }
    }
  }
  std::vector<int32_t> kept;
  int64_t low = 0;
  int64_t high = 0;
  int32_t begun = 0;
  int32_t ended = 0;
  for (size_t time = 0; time < times; ++time) {
    low += least[time];
    high += most[time];
    begun += begins[time];
    ended += ends[time];
    int64_t& limit = (*limits)[time];
    if (limit == kUnlimited) continue;
    limit -= low;
    if (limit < 0) *is_feasible = false;
    if (high <= limit) continue;
    // Between the last kept time and this one: did any usage begin, did any end?
    bool is_implied = false;
    while (!kept.empty()) {
      const bool anything_began = begun > 0;
      const bool anything_ended = ended > 0;
      const int64_t last = (*limits)[kept.back()];
      if (!anything_began && limit >= last) {
        is_implied = true;
        break;
      }
      if (anything_ended || last < limit) break;
      kept.pop_back();
      // Times before the one that is dropped are compared by a later call.
      begun = 1;
      ended = 1;
    }
    if (is_implied) continue;
    kept.push_back(static_cast<int32_t>(time));
    begun = 0;
    ended = 0;
  }
  kept = WithoutEqual(nodes, *limits, std::move(kept));
  std::vector<int32_t> place(times + 1, 0);  // the first kept time from this one on
  for (size_t time = 0, next = 0; time <= times; ++time) {
    while (next < kept.size() && kept[next] < static_cast<int32_t>(time)) ++next;
    place[time] = static_cast<int32_t>(next);
  }
  for (size_t v = 0; v < nodes.size(); ++v) {
    std::vector<Usage>& usages = nodes[v]->usages;
    std::vector<Usage> merged;
    for (Usage& usage : usages) {
      usage.begin = place[usage.begin];
      usage.end = place[usage.end];
      const bool is_empty =
          usage.begin == usage.end || std::all_of(usage.amounts.begin(), usage.amounts.end(),
                                                  [](int64_t amount) { return amount == 0; });
      if (is_empty) continue;
      const auto same = std::find_if(merged.begin(), merged.end(), [&](const Usage& other) {
        return other.begin == usage.begin && other.end == usage.end;
      });
      if (same == merged.end()) {
        merged.push_back(std::move(usage));
      } else {
        for (size_t i = 0; i < usage.amounts.size(); ++i) same->amounts[i] += usage.amounts[i];
      }
    }
    changed[v] = merged.size() < usages.size();
    usages = std::move(merged);
  }
  std::vector<int64_t> kept_limits;
  kept_limits.reserve(kept.size());
  for (const int32_t time : kept) kept_limits.push_back((*limits)[time]);
  *limits = std::move(kept_limits);
  return changed;
}

}  // namespace distir::autoshard
