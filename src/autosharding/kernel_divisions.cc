// Prices redistributions that divide kernels.
#include <algorithm>

#include "autosharding/kernels.h"

namespace distir::autosharding {

using propagation::Node;

/*! \brief Seconds by which a part, as a kernel of its own, exceeds the prices of its calls. */
double Kernels::Excess(const Group& group, const Part& part) {
  double excess = TimeOf(group, part).seconds;
  for (size_t position = 0; position < part.size(); ++position) {
    if (part[position] >= 0) excess -= SharesIn(group, position)[part[position]];
  }
  return excess;
}

/*! \brief True if two calls are joined by tensors of the kernel in another way than by the cut. */
bool Kernels::IsTangled(const Group& group, size_t from, size_t to, Cut cut) const {
  std::vector<size_t> todo = {from};
  const auto reach = [&](size_t call) {
    if (std::find(todo.begin(), todo.end(), call) == todo.end()) todo.push_back(call);
  };
  for (size_t next = 0; next < todo.size(); ++next) {
    const Node& node = graph_.nodes[todo[next]];
    if (&groups_[groups_of_[todo[next]].back()] == &group) {
      for (int slot : node.results) {
        for (const Use& reader : readers_[slot]) {
          if (is_inner_[slot] && !cut.Divides(slot, reader.call)) reach(reader.call);
        }
      }
    }
    if (&groups_[groups_of_[todo[next]].front()] != &group) continue;
    for (int slot : node.operands) {
      if (is_inner_[slot] && !cut.Divides(slot, todo[next])) reach(maker_[slot].call);
    }
  }
  return std::find(todo.begin(), todo.end(), to) != todo.end();
}

/*! \brief Seconds for all pairs of a sharding in front of a cut and one behind it. */
std::vector<double> Kernels::Divisions(int slot, Cut cut, const std::vector<int>& before,
                                       const std::vector<Start>& heads,
                                       const std::vector<int>& behind,
                                       const std::vector<Start>& tails) {
  const Group& group = groups_[groups_of_[maker_[slot].call].back()];
  const std::vector<size_t>& readers = tails[0].calls;
  const bool is_tangled = std::any_of(readers.begin(), readers.end(), [&](size_t reader) {
    return IsTangled(group, maker_[slot].call, reader, cut);
  });
  const bool is_simple = !is_tangled && !group.shares_reads;
  std::unordered_map<Words, double, HashWords> known;  // excess by tail and head
  std::vector<double> seconds;
  seconds.reserve(before.size() * behind.size());
  for (size_t i = 0; i < before.size(); ++i) {
    const Part head = Follow(group, heads[i], cut, nullptr);
    const double of_head = Excess(group, head);
    const bool is_divided = std::none_of(readers.begin(), readers.end(), [&](size_t reader) {
      return WayOf(group, head, reader) >= 0;
    });
    for (size_t j = 0; j < behind.size(); ++j) {
      if (before[i] == behind[j]) {
        seconds.push_back(0);
        continue;
      }
      if (!is_divided) {  // it goes round the cut: written and read again
        seconds.push_back(limits_.Seconds(0, 2 * Local(slot, before[i])));
        continue;
      }
      Words key = {static_cast<int64_t>(j)};
      if (!is_simple) key.insert(key.end(), head.begin(), head.end());
      auto [found, is_new] = known.try_emplace(std::move(key), 0);
      if (is_new) {
        // A tensor's sharding behind the cut is known to all of its readers.
        const Cut behind_cut = tails[j].slot >= 0 ? Cut() : cut;
        found->second =
            Excess(group, Follow(group, tails[j], behind_cut, is_simple ? nullptr : &head));
      }
      seconds.push_back(of_head + found->second);
    }
  }
  return seconds;
}

const std::vector<double>& Kernels::SecondsToDivide(int slot) {
  const Use& maker = maker_[slot];
  const Use& reader = readers_[slot][0];
  const Group& group = groups_[groups_of_[maker.call].back()];
  const NumberedWays& made = *calls_[maker.call].rule;
  const NumberedWays& read = *calls_[reader.call].rule;
  Words key = {group.kind,
               0,
               static_cast<int64_t>(PositionOf(group, maker.call)),
               static_cast<int64_t>(maker.index),
               static_cast<int64_t>(PositionOf(group, reader.call)),
               static_cast<int64_t>(reader.index)};
  auto [found, is_new] = prices_.divisions.try_emplace(std::move(key));
  if (is_new) {
    found->second = Divisions(slot, {slot, -1}, made.results[maker.index],
                              StartsOf(maker.call, made.ways.size()), read.operands[reader.index],
                              StartsOf(reader.call, read.ways.size()));
  }
  return found->second;
}

const std::vector<double>& Kernels::SecondsToDivideBehind(int slot,
                                                          const std::vector<int>& shardings) {
  const Use& maker = maker_[slot];
  const Group& group = groups_[groups_of_[maker.call].back()];
  const NumberedWays& made = *calls_[maker.call].rule;
  Words key = {group.kind, 1, static_cast<int64_t>(PositionOf(group, maker.call)),
               static_cast<int64_t>(maker.index)};
  key.insert(key.end(), shardings.begin(), shardings.end());
  auto [found, is_new] = prices_.divisions.try_emplace(std::move(key));
  if (is_new) {
    std::vector<size_t> readers;
    for (const Use& reader : readers_[slot]) readers.push_back(reader.call);
    std::vector<Start> tails;
    for (int number : shardings) tails.push_back({readers, -1, slot, number});
    found->second = Divisions(slot, {slot, -1}, made.results[maker.index],
                              StartsOf(maker.call, made.ways.size()), shardings, tails);
  }
  return found->second;
}

const std::vector<double>& Kernels::SecondsToDivideBefore(int slot,
                                                          const std::vector<int>& shardings,
                                                          size_t reader, size_t operand) {
  const Use& maker = maker_[slot];
  const Group& group = groups_[groups_of_[maker.call].back()];
  const NumberedWays& read = *calls_[reader].rule;
  Words key = {group.kind,
               2,
               static_cast<int64_t>(PositionOf(group, maker.call)),
               static_cast<int64_t>(maker.index),
               static_cast<int64_t>(PositionOf(group, reader)),
               static_cast<int64_t>(operand)};
  key.insert(key.end(), shardings.begin(), shardings.end());
  auto [found, is_new] = prices_.divisions.try_emplace(std::move(key));
  if (is_new) {
    std::vector<Start> heads;
    for (int number : shardings) heads.push_back({{maker.call}, -1, slot, number});
    found->second = Divisions(slot, {slot, static_cast<int64_t>(reader)}, shardings, heads,
                              read.operands[operand], StartsOf(reader, read.ways.size()));
  }
  return found->second;
}

std::vector<Kernels::Start> Kernels::StartsOf(size_t call, size_t num_ways) {
  std::vector<Start> starts;
  for (size_t w = 0; w < num_ways; ++w) starts.push_back({{call}, static_cast<int>(w)});
  return starts;
}

}  // namespace distir::autosharding
