// Finds which parts of loop iterators and buffer dimensions correspond: they are one factor.
#include "rules/tir/digits.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

namespace distir::rules {

namespace {

constexpr const char* kNoFit = "it is split in ways that do not fit each other";

/*! \brief The representative of a set; halves paths on the way. */
int Find(std::vector<int>* parents, int index) {
  while ((*parents)[index] != index) {
    (*parents)[index] = (*parents)[(*parents)[index]];
    index = (*parents)[index];
  }
  return index;
}

int64_t Scale(int64_t place, int64_t from, int64_t to) {
  return place == kUnbounded ? kUnbounded : place / from * to;
}

}  // namespace

int DigitTable::AddRange(int64_t size) {
  if (size == 0) size = 1;  // nothing in it, nothing to cut
  RangeState range;
  range.size = size;
  range.cuts = {1, size < 0 ? kUnbounded : size};
  ranges_.push_back(std::move(range));
  return num_ranges() - 1;
}

int64_t DigitTable::EndOf(int range) const {
  return ranges_[range].size < 0 ? kUnbounded : ranges_[range].size;
}

void DigitTable::Link(int range, int64_t low, int other, int64_t other_low, int64_t extent) {
  bool is_open = extent == kUnbounded;
  LinkState link{{range, other},
                 {low, other_low},
                 {is_open ? kUnbounded : low * extent, is_open ? kUnbounded : other_low * extent}};
  for (int side = 0; side < 2; ++side) {
    Cut(link.range[side], link.low[side]);
    Cut(link.range[side], link.high[side]);
  }
  links_.push_back(link);
}

void DigitTable::Pin(int range, int64_t low, int64_t extent) {
  int64_t high = extent < 0 ? EndOf(range) : low * extent;
  Cut(range, low);
  Cut(range, high);
  ranges_[range].pinned.emplace_back(low, high);
}

void DigitTable::Break(int range, const std::string& why) {
  if (ranges_[range].broken.empty()) ranges_[range].broken = why;
}

bool DigitTable::Cut(int range, int64_t place) {
  RangeState& state = ranges_[range];
  auto next = state.cuts.lower_bound(place);
  if (next != state.cuts.end() && *next == place) return false;
  bool fits = next != state.cuts.end() && next != state.cuts.begin() &&
              (*next == kUnbounded || *next % place == 0) && place % *std::prev(next) == 0;
  if (!fits) {
    bool changed = state.broken.empty();
    Break(range, kNoFit);
    return changed;
  }
  state.cuts.insert(place);
  return true;
}

bool DigitTable::SpreadCuts(const LinkState& link, int from) {
  int to = 1 - from;
  const std::set<int64_t>& cuts = ranges_[link.range[from]].cuts;
  std::vector<int64_t> inner(cuts.upper_bound(link.low[from]), cuts.lower_bound(link.high[from]));
  bool changed = false;
  for (int64_t place : inner) {
    changed = Cut(link.range[to], Scale(place, link.low[from], link.low[to])) || changed;
  }
  return changed;
}

void DigitTable::Solve() {
  // Every cut divides its range, so there are finitely many and this ends.
  for (bool changed = true; changed;) {
    changed = false;
    for (const LinkState& link : links_) {
      for (int from : {0, 1}) changed = SpreadCuts(link, from) || changed;
    }
  }

  std::vector<std::map<int64_t, int>> pieces(ranges_.size());  // by lower end
  std::vector<int64_t> sizes;
  std::vector<bool> pinned;
  std::vector<std::string> broken;  // why
  for (std::size_t r = 0; r < ranges_.size(); ++r) {
    const RangeState& range = ranges_[r];
    for (auto low = range.cuts.begin(); std::next(low) != range.cuts.end(); ++low) {
      pieces[r][*low] = static_cast<int>(sizes.size());
      int64_t high = *std::next(low);
      sizes.push_back(high == kUnbounded ? -1 : high / *low);
      pinned.push_back(std::any_of(range.pinned.begin(), range.pinned.end(), [&](const auto& part) {
        return part.first <= *low && *low < part.second;
      }));
      broken.push_back(range.broken);
    }
  }
  std::vector<int> parents(sizes.size());
  std::iota(parents.begin(), parents.end(), 0);
  for (const LinkState& link : links_) {
    const std::string& broken_side = ranges_[link.range[0]].broken.empty()
                                         ? ranges_[link.range[1]].broken
                                         : ranges_[link.range[0]].broken;
    for (int side : {0, 1}) {
      std::map<int64_t, int>& own = pieces[link.range[side]];
      std::map<int64_t, int>& other = pieces[link.range[1 - side]];
      for (auto it = own.lower_bound(link.low[side]); it != own.end(); ++it) {
        if (link.high[side] != kUnbounded && it->first >= link.high[side]) break;
        if (!broken_side.empty()) {
          broken[it->second] = broken_side;
          continue;
        }
        auto match = other.find(Scale(it->first, link.low[side], link.low[1 - side]));
        if (match == other.end()) {
          broken[it->second] = kNoFit;
          continue;
        }
        parents[Find(&parents, it->second)] = Find(&parents, match->second);
      }
    }
  }

  std::map<int, int> class_of_root;
  for (RangeState& range : ranges_) {
    range.classes.clear();
    const auto& own = pieces[&range - ranges_.data()];
    for (auto it = own.rbegin(); it != own.rend(); ++it) {
      int root = Find(&parents, it->second);
      auto [entry, inserted] = class_of_root.emplace(root, num_classes());
      if (inserted) {
        class_sizes_.push_back(sizes[it->second]);
        class_pinned_.push_back(false);
        class_broken_.emplace_back();
      }
      int index = entry->second;
      // Pieces of one class have one size; anything else is a mismatch of ends.
      if (class_sizes_[index] != sizes[it->second]) broken[it->second] = kNoFit;
      if (class_broken_[index].empty()) class_broken_[index] = broken[it->second];
      if (pinned[it->second] || !broken[it->second].empty()) class_pinned_[index] = true;
      range.classes.push_back(index);
    }
  }
}

std::vector<int> DigitTable::ClassesOf(const std::vector<int>& ranges) const {
  std::vector<int> classes;
  for (int range : ranges) {
    const std::vector<int>& own = ClassesOf(range);
    classes.insert(classes.end(), own.begin(), own.end());
  }
  return classes;
}

}  // namespace distir::rules
