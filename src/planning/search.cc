// A* search over the shardings of a Space.
#include "planning/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <unordered_map>

#include "cost/collective_cost.h"

namespace distir::planning {

namespace {

using mesh::CollectiveKind;

/*! \brief Femtoseconds: integers, so that sums do not depend on their order. */
using Time = int64_t;

Time ToTime(double seconds) {
  constexpr double kLongest = 1e17;  // 100 s; sums of a few steps stay within 64 bits
  return static_cast<Time>(std::llround(std::min(seconds * 1e15, kLongest)));
}

/*! \brief Weight of a step among ways of equal time: less than any communication; a slice by every
 * atom. */
int Weight(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kSlice:
      return 1;
    case CollectiveKind::kExchange:
      return 3 * kMostAtoms;
    default:
      return 2 * kMostAtoms;
  }
}

/*! \brief A cluster of one link, at least as good as every link of another. */
cost::Cluster BestOf(const cost::Cluster& cluster) {
  cost::Link best = cluster.links()[0];
  for (const cost::Link& link : cluster.links()) {
    best.latency = std::min(best.latency, link.latency);
    best.gap = std::min(best.gap, link.gap);
    best.bandwidth = std::max(best.bandwidth, link.bandwidth);
  }
  return cost::Cluster(best, cluster.launch());
}

// Nodes that a search under `only_nearer` expands before it takes the best way known.
constexpr int kMostExpanded = 2000;

class Search {
 public:
  Search(Space* space, const Question& question)
      : space_(*space),
        cluster_(space->cluster()),
        best_(BestOf(cluster_)),
        question_(question),
        target_(space->at(question.target)) {}

  std::vector<Move> Run() {
    const Node& source = space_.at(question_.source);
    records_[question_.source] = Record{};
    if (question_.source == question_.target) return {};
    StartWithDirectWay(source);
    open_.push({Bound(question_.source), question_.source});
    int expanded = 0;
    while (!open_.empty()) {
      auto [estimate, node] = open_.top();
      open_.pop();
      if (node == question_.target) break;
      Record& record = records_[node];
      if (record.closed || estimate > Best()) continue;
      record.closed = true;
      if (question_.only_nearer && ++expanded > kMostExpanded) break;
      Expand(node);
    }
    std::vector<Move> way;
    for (int node = question_.target; node != question_.source; node = records_[node].previous) {
      way.push_back(records_[node].move);
    }
    std::reverse(way.begin(), way.end());
    return way;
  }

 private:
  struct Record {
    Time time = 0;
    int previous = -1;
    bool closed = false;
    Move move{};
  };
  struct Entry {
    Time estimate;
    int node;
    bool operator<(const Entry& other) const {  // the queue gives the greatest first
      return estimate != other.estimate ? estimate > other.estimate : node > other.node;
    }
  };

  Time Best() const {
    auto found = records_.find(question_.target);
    return found == records_.end() ? std::numeric_limits<Time>::max() : found->second.time;
  }

  double LocalBytes(const Node& node) const { return node.layout.Fraction() * question_.bytes; }

  /*! \brief Less than any way from a node to the target takes. */
  Time Bound(int node) {
    double received = target_.layout.Fraction() * question_.bytes;  // of a partial value: all
    if (space_.at(node).partial == 0) received = Lacking(node);
    if (received == 0) return 0;
    double seconds = cluster_.launch() + best_.links()[0].Seconds(1, received);
    return static_cast<Time>(static_cast<double>(ToTime(seconds)) * (1 - 1e-9));
  }

  /*! \brief Bytes that the worst-off device lacks. */
  double Lacking(int node) { return space_.Lacking(node, question_.target) * question_.bytes; }

  /*! \brief Reduces what is partial, then exchanges: a way that there always is. */
  void StartWithDirectWay(const Node& source) {
    int whole = space_.Intern(source.dims, 0);
    Move reduce{};
    if (source.partial != 0)
      reduce = ReductionMove(CollectiveKind::kAllReduce, source, source.partial);
    Move exchange = ExchangeMove(whole, question_.target);
    // Above the rounding of single steps, below any true difference.
    tie_ = 4 + (ToTime(reduce.seconds) + ToTime(exchange.seconds)) / 1000000000;
    if (source.partial != 0) Relax(question_.source, whole, reduce);
    if (whole != question_.target) Relax(whole, question_.target, exchange);
  }

  // ---- moves

  Move GroupMove(CollectiveKind kind, const Node& from, AtomSet atoms, AtomSet reduced = 0) {
    int64_t size = space_.SizeOf(atoms);
    double local = LocalBytes(from);
    return Move{kind, -1, reduced,
                cost::Seconds(kind, cluster_.launch(), space_.LinkAlong(atoms), size, local),
                cost::BytesSent(kind, size, local)};
  }
  Move ReductionMove(CollectiveKind kind, const Node& from, AtomSet atoms) {
    return GroupMove(kind, from, atoms, atoms);
  }
  Move ExchangeMove(int from, int to) {
    const cost::ExchangeCost cost =
        space_.Exchange(from, to).Cost(cluster_.launch(), question_.bytes);
    bool same_grid = space_.at(from).layout.counts() == space_.at(to).layout.counts();
    return Move{same_grid ? CollectiveKind::kPermute : CollectiveKind::kExchange, to, 0,
                cost.seconds, cost.bytes()};
  }

  void Relax(int from, int to, Move move) {
    move.node = to;
    Time time = records_[from].time + ToTime(move.seconds) + tie_ * Weight(move.kind);
    auto [it, is_new] = records_.try_emplace(to);
    if (!is_new && it->second.time <= time) return;
    Time estimate = time + (to == question_.target ? 0 : Bound(to));
    if (estimate > Best() && to != question_.target) {
      if (is_new) records_.erase(it);
      return;
    }
    it->second = Record{time, from, false, move};
    open_.push({estimate, to});
  }

  bool Divides(const std::vector<AtomList>& dims) const {
    for (size_t d = 0; d < dims.size(); ++d) {
      int64_t count = 1;
      for (uint8_t atom : dims[d]) count *= space_.SizeOf(atom);
      if (question_.divisors[d] % count != 0) return false;
    }
    return true;
  }

  void RelaxTo(int from, std::vector<AtomList> dims, AtomSet partial, const Move& move) {
    if (Divides(dims)) Relax(from, space_.Intern(dims, partial), move);
  }

  // ---- what is nearer to the target

  /*! \brief Number of leading atoms of a dimension that agree with the target. */
  size_t Settled(const Node& node, size_t d) const {
    const AtomList& now = node.dims[d];
    const AtomList& then = target_.dims[d];
    size_t length = 0;
    while (length < now.size() && length < then.size() && now[length] == then[length]) ++length;
    return length;
  }
  /*! \brief True if the target has `atoms` next in dimension `d`. */
  bool HasNext(const Node& node, size_t d, const AtomList& atoms) const {
    const AtomList& now = node.dims[d];
    const AtomList& then = target_.dims[d];
    return Settled(node, d) == now.size() && now.size() + atoms.size() <= then.size() &&
           std::equal(atoms.begin(), atoms.end(), then.begin() + now.size());
  }

  void Expand(int index) {
    const Node& node = space_.at(index);
    if (node.partial == 0) {
      Relax(index, question_.target, ExchangeMove(index, question_.target));
      if (!question_.only_nearer) DecomposeExchanges(index);
    } else {
      DecomposeReductions(index, node);
    }
    for (size_t d = 0; d < node.dims.size(); ++d) {
      DecomposeSlices(index, node, d);
      DecomposeRuns(index, node, d);
    }
  }

  void DecomposeSlices(int index, const Node& node, size_t d) {
    for (int atom = 0; atom < space_.num_atoms(); ++atom) {
      if (!(node.free >> atom & 1)) continue;
      AtomList added{static_cast<uint8_t>(atom)};
      if (question_.only_nearer && !HasNext(node, d, added)) continue;
      std::vector<AtomList> dims = node.dims;
      dims[d].push_back(added[0]);
      RelaxTo(index, dims, node.partial, Move{CollectiveKind::kSlice, -1, 0, 0, 0});
    }
  }

  /*! \brief Gathers every minor run of a dimension, or moves it to another. */
  void DecomposeRuns(int index, const Node& node, size_t d) {
    AtomSet set = 0;
    size_t movable = node.dims[d].size() - (question_.only_nearer ? Settled(node, d) : 0);
    for (size_t length = 1; length <= movable; ++length) {
      AtomList run(node.dims[d].end() - length, node.dims[d].end());
      set |= AtomSet{1} << run[0];
      std::vector<AtomList> dims = node.dims;
      dims[d].resize(dims[d].size() - length);
      RelaxTo(index, dims, node.partial, GroupMove(CollectiveKind::kAllGather, node, set));
      Move all_to_all = GroupMove(CollectiveKind::kAllToAll, node, set);
      for (size_t to = 0; to < dims.size(); ++to) {
        if (to == d || (question_.only_nearer && !HasNext(node, to, run))) continue;
        std::vector<AtomList> moved = dims;
        moved[to].insert(moved[to].end(), run.begin(), run.end());
        RelaxTo(index, moved, node.partial, all_to_all);
      }
    }
  }

  void DecomposeReductions(int index, const Node& node) {
    for (AtomSet subset = node.partial; subset != 0; subset = (subset - 1) & node.partial) {
      if (question_.only_nearer && subset != node.partial) break;
      RelaxTo(index, node.dims, node.partial & ~subset,
              ReductionMove(CollectiveKind::kAllReduce, node, subset));
    }
    for (size_t d = 0; d < node.dims.size(); ++d) {
      AtomList scattered;
      DecomposeScatters(index, node, d, &scattered, 0);
    }
  }

  /*! \brief Reduces and scatters over every ordered choice of partial atoms that begins with
   * `scattered`. */
  void DecomposeScatters(int index, const Node& node, size_t d, AtomList* scattered, AtomSet set) {
    for (int atom = 0; atom < space_.num_atoms(); ++atom) {
      AtomSet bit = AtomSet{1} << atom;
      if (!(node.partial & bit) || (set & bit)) continue;
      scattered->push_back(static_cast<uint8_t>(atom));
      if (!question_.only_nearer || HasNext(node, d, *scattered)) {
        std::vector<AtomList> dims = node.dims;
        dims[d].insert(dims[d].end(), scattered->begin(), scattered->end());
        RelaxTo(index, dims, node.partial & ~(set | bit),
                ReductionMove(CollectiveKind::kReduceScatter, node, set | bit));
        DecomposeScatters(index, node, d, scattered, set | bit);
      }
      scattered->pop_back();
    }
  }

  /*! \brief Exchanges to somewhere on the way. */
  void DecomposeExchanges(int index) {
    // Another step has to follow: two messages at least, and all that is lacking.
    const cost::Link& best = best_.links()[0];
    Time least =
        ToTime(2 * (cluster_.launch() + best.Seconds(1, 0)) + Lacking(index) / best.bandwidth);
    if (records_[index].time + least >= Best()) return;
    for (int to : space_.All()) {
      if (to == question_.target || !Divides(space_.at(to).dims)) continue;
      Relax(index, to, ExchangeMove(index, to));
    }
  }

  Space& space_;
  const cost::Cluster& cluster_;
  const cost::Cluster best_;  // all devices joined by a link as good as any
  const Question& question_;
  const Node& target_;
  Time tie_ = 0;  // time that one unit of weight counts for
  std::unordered_map<int, Record> records_;
  std::priority_queue<Entry> open_;
};

}  // namespace

std::vector<Move> FindWay(Space* space, const Question& question) {
  return Search(space, question).Run();
}

}  // namespace distir::planning
