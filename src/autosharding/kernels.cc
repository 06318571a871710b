// Prices calls as parts of kernels, and redistributions that divide kernels.
#include "autosharding/kernels.h"

#include <algorithm>
#include <map>

namespace distir::autosharding {

using propagation::FunctionGraph;
using propagation::Node;
using propagation::SlotInfo;

Kernels::Kernels(const FunctionGraph& graph, std::vector<Call> calls,
                 const std::vector<bool>& is_outside, const DeviceLimits& limits,
                 const Moves& moves, Prices* prices)
    : graph_(graph),
      calls_(std::move(calls)),
      is_outside_(is_outside),
      limits_(limits),
      moves_(moves),
      prices_(*prices),
      maker_(graph.slots.size()),
      readers_(graph.slots.size()),
      num_makers_(graph.slots.size(), 0),
      is_inner_(graph.slots.size(), false),
      number_(graph.slots.size(), -1),
      known_in_(graph.slots.size(), 0) {
  MakeGroups();
  Link();
  for (Group& group : groups_) NameKind(&group);
}

void Kernels::MakeGroups() {
  OfKernels patterns;
  for (const Call& call : calls_) {
    std::vector<int>& own = patterns.emplace_back();
    for (const KernelWork& kernel : call.work->kernels)
      own.push_back(call.is_needed && !call.is_folded ? kernel.pattern : kLeftOut);
  }
  std::map<int, size_t> place;  // of a group's number in groups_
  const OfKernels found = FusedGroups(graph_, patterns);
  groups_of_.resize(found.size());
  for (size_t call = 0; call < found.size(); ++call) {
    for (size_t kernel = 0; kernel < found[call].size(); ++kernel) {
      const auto [at, is_new] = place.emplace(found[call][kernel], groups_.size());
      if (is_new) groups_.emplace_back();
      Group& group = groups_[at->second];
      group.pieces.push_back({call, kernel});
      if (group.calls.empty() || group.calls.back() != call) group.calls.push_back(call);
      groups_of_[call].push_back(at->second);
    }
  }
}

void Kernels::Link() {
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Node& node = graph_.nodes[i];
    for (size_t r = 0; r < node.results.size(); ++r) {
      maker_[node.results[r]] = {i, r};
      ++num_makers_[node.results[r]];
    }
    for (size_t o = 0; o < node.operands.size(); ++o) {
      if (calls_[i].is_needed) readers_[node.operands[o]].push_back({i, o});
    }
  }
  for (size_t s = 0; s < readers_.size(); ++s) {
    if (num_makers_[s] != 1 || is_outside_[s] || readers_[s].empty()) continue;
    const size_t group = groups_of_[maker_[s].call].back();
    is_inner_[s] = std::all_of(readers_[s].begin(), readers_[s].end(), [&](const Use& reader) {
      return groups_of_[reader.call].front() == group;
    });
  }
}

/*! \brief Groups are alike if their calls, the links between them and the sizes are. */
void Kernels::NameKind(Group* group) {
  Words words;
  std::map<int, int64_t> place;  // of a slot
  std::map<int, int> num_reads;
  for (const Piece& piece : group->pieces) {
    const KernelWork& work = calls_[piece.call].work->kernels[piece.kernel];
    const bool is_last = piece.kernel + 1 == calls_[piece.call].work->kernels.size();
    for (int64_t word : {Bits(work.computing), Bits(work.read), Bits(work.written),
                         static_cast<int64_t>(piece.kernel), int64_t{is_last}})
      words.push_back(word);
  }
  for (size_t call : group->calls) {
    const Call& info = calls_[call];
    words.push_back(Address(info.rule));
    words.push_back(info.is_needed + 2 * info.is_folded + 4 * info.work->is_view);
    const Node& node = graph_.nodes[call];
    for (const propagation::SlotList* slots : {&node.operands, &node.results}) {
      for (int slot : *slots) {
        const auto [at, is_new] = place.emplace(slot, static_cast<int64_t>(place.size()));
        words.push_back(at->second);
        if (!is_new) continue;
        const SlotInfo& tensor = graph_.slots[slot];
        words.push_back(Bits(tensor.bytes()));
        words.push_back(is_inner_[slot]);
        words.push_back(static_cast<int64_t>(tensor.sizes.size()));
        words.insert(words.end(), tensor.sizes.begin(), tensor.sizes.end());
      }
    }
    for (int slot : node.operands) {
      if (!is_inner_[slot] && ++num_reads[slot] > 1) group->shares_reads = true;
    }
  }
  group->kind = prices_.kinds.emplace(std::move(words), static_cast<int64_t>(prices_.kinds.size()))
                    .first->second;
}

size_t Kernels::PositionOf(const Group& group, size_t call) const {
  return std::lower_bound(group.calls.begin(), group.calls.end(), call) - group.calls.begin();
}

int Kernels::WayOf(const Group& group, const Part& part, size_t call) const {
  const size_t position = PositionOf(group, call);
  return position < group.calls.size() && group.calls[position] == call ? part[position] : -1;
}

/*! \brief Notes the shardings that a call has of its tensors. */
void Kernels::Know(size_t call, int way) {
  const Node& node = graph_.nodes[call];
  const auto note = [&](int slot, int number) {
    if (known_in_[slot] == run_) return;
    known_in_[slot] = run_;
    number_[slot] = number;
  };
  for (size_t r = 0; r < node.results.size(); ++r)
    note(node.results[r], ResultNumber({call, r}, way));
  for (size_t o = 0; o < node.operands.size(); ++o)
    note(node.operands[o], OperandNumber({call, o}, way));
}

/*! \brief The way of a call that agrees with what is known of tensors within the kernel, with as
 * many others as possible, and shards least; -1 if there is none. */
int Kernels::Choose(size_t call, Cut cut) const {
  const Node& node = graph_.nodes[call];
  const NumberedWays& rule = *calls_[call].rule;
  int best = -1, most = -1;
  double largest = 0;
  for (size_t w = 0; w < rule.ways.size(); ++w) {
    int matches = 0;
    bool agrees = true;
    const auto compare = [&](int slot, int number, bool is_cut) {
      if (known_in_[slot] != run_ || is_cut) return;
      if (number_[slot] == number) {
        ++matches;
      } else if (is_inner_[slot]) {
        agrees = false;
      }
    };
    for (size_t o = 0; o < node.operands.size() && agrees; ++o) {
      const int slot = node.operands[o];
      compare(slot, rule.operands[o][w], cut.Divides(slot, call));
    }
    for (size_t r = 0; r < node.results.size() && agrees; ++r)
      compare(node.results[r], rule.results[r][w], node.results[r] == cut.slot && cut.reader < 0);
    if (!agrees) continue;
    const double fraction = rule.ways[w].fraction;
    if (matches > most || (matches == most && fraction > largest)) {
      best = static_cast<int>(w);
      most = matches;
      largest = fraction;
    }
  }
  return best;
}

Kernels::Part Kernels::Follow(const Group& group, const Start& start, Cut cut, const Part* beside) {
  ++run_;
  Part part(group.calls.size(), -1);
  if (start.slot >= 0) {
    known_in_[start.slot] = run_;
    number_[start.slot] = start.number;
  }
  const auto is_beside = [&](size_t position) {
    return beside != nullptr && (*beside)[position] >= 0;
  };
  for (size_t position = 0; position < part.size(); ++position) {
    if (is_beside(position)) Know(group.calls[position], (*beside)[position]);
  }
  std::vector<size_t> todo;
  const auto add = [&](size_t call, int way) {
    if (way < 0) return;
    part[PositionOf(group, call)] = way;
    Know(call, way);
    todo.push_back(call);
  };
  const auto reach = [&](size_t call) {
    const size_t position = PositionOf(group, call);
    if (part[position] < 0 && !is_beside(position)) add(call, Choose(call, cut));
  };
  if (start.way >= 0) {
    add(start.calls[0], start.way);
  } else {
    for (size_t call : start.calls) reach(call);
  }
  for (size_t next = 0; next < todo.size(); ++next) {
    const size_t call = todo[next];
    const Node& node = graph_.nodes[call];
    if (&groups_[groups_of_[call].back()] == &group) {
      for (int slot : node.results) {
        if (!is_inner_[slot]) continue;
        for (const Use& reader : readers_[slot]) {
          if (!cut.Divides(slot, reader.call)) reach(reader.call);
        }
      }
    }
    if (&groups_[groups_of_[call].front()] != &group) continue;
    for (int slot : node.operands) {
      if (is_inner_[slot] && !cut.Divides(slot, call)) reach(maker_[slot].call);
    }
  }
  return part;
}

const std::vector<double>& Kernels::SharesIn(const Group& group, size_t position) {
  auto [found, is_new] = prices_.calls.try_emplace({group.kind, static_cast<int64_t>(position)});
  std::vector<double>& shares = found->second;
  if (!is_new) return shares;
  const size_t call = group.calls[position];
  for (size_t w = 0; w < calls_[call].rule->ways.size(); ++w) {
    const bool is_computed = calls_[call].is_needed && !(calls_[call].is_folded && w == 0);
    const Start start = {{call}, static_cast<int>(w)};
    shares.push_back(is_computed ? TimeOf(group, Follow(group, start, {}, nullptr)).shares[position]
                                 : 0);
  }
  return shares;
}

const std::vector<double>& Kernels::SecondsOf(size_t call) {
  const std::vector<size_t>& groups = groups_of_[call];
  const auto shares = [&](size_t group) -> const std::vector<double>& {
    return SharesIn(groups_[group], PositionOf(groups_[group], call));
  };
  if (std::all_of(groups.begin(), groups.end(), [&](size_t each) { return each == groups[0]; }))
    return shares(groups[0]);
  Words key = {-1};
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i > 0 && groups[i] == groups[i - 1]) continue;
    key.push_back(groups_[groups[i]].kind);
    key.push_back(static_cast<int64_t>(PositionOf(groups_[groups[i]], call)));
  }
  auto found = prices_.calls.find(key);
  if (found != prices_.calls.end()) return found->second;
  std::vector<double> all(calls_[call].rule->ways.size(), 0);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i > 0 && groups[i] == groups[i - 1]) continue;
    const std::vector<double>& own = shares(groups[i]);
    for (size_t w = 0; w < all.size(); ++w) all[w] += own[w];
  }
  return prices_.calls[key] = std::move(all);
}

}  // namespace distir::autosharding
