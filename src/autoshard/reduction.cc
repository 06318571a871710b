// Applies the reductions of autoshard/reduction.h until nothing changes.
#include "autoshard/reduction.h"

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "autoshard/digest.h"
#include "autoshard/elimination.h"
#include "autoshard/times.h"

namespace distir::autoshard {

namespace {

/*! \brief Entries of a new edge that an elimination may write, beyond twice those it removes. */
constexpr int64_t kFreeEntries = 64;
/*! \brief Comparisons of costs that a search for dominated strategies of a node may take. */
constexpr int64_t kDominanceWork = 200'000;
/*! \brief Neighbours of a node of which dominated strategies are looked for. */
constexpr size_t kDominanceDegree = 64;

}  // namespace

class Reducer {
 public:
  Reducer(Problem problem, Reduction* result) : result_(*result), limits_(problem.limits) {
    constant_ = problem.constant;
    const auto size = static_cast<int32_t>(problem.nodes.size());
    result_.original_size_ = size;
    nodes_ = std::move(problem.nodes);
    adjacent_.resize(size);
    is_alive_.assign(size, true);
    is_queued_.assign(size, false);
    labels_.resize(size);
    sizes_.resize(size);
    for (int32_t v = 0; v < size; ++v) {
      sizes_[v] = static_cast<int32_t>(nodes_[v].costs.size());
      labels_[v].resize(sizes_[v]);
      for (int32_t i = 0; i < sizes_[v]; ++i) labels_[v][i] = static_cast<int16_t>(i);
    }
    for (Edge& edge : problem.edges) AddEdge(edge.from, edge.to, std::move(edge.costs));
  }

  void Run() {
    for (int32_t v = 0; v < static_cast<int32_t>(nodes_.size()); ++v) Push(v);
    do {
      Drain();
      if (!result_.is_feasible_) return;
    } while (ReduceMemory());
    Finish();
  }

 private:
  int32_t SizeOf(int32_t v) const { return static_cast<int32_t>(nodes_[v].costs.size()); }

  void Push(int32_t v) {
    if (!is_alive_[v] || is_queued_[v]) return;
    is_queued_[v] = true;
    queue_.push_back(v);
  }
  void PushEdge(int32_t edge) {
    if (is_edge_queued_[edge]) return;
    is_edge_queued_[edge] = true;
    edge_queue_.push_back(edge);
  }

  Sight See(int32_t v, int32_t edge) {
    Edge& seen = edges_[edge];
    const int32_t columns = SizeOf(seen.to);
    return seen.from == v ? Sight{seen.costs.data(), columns, 1}
                          : Sight{seen.costs.data(), 1, columns};
  }

  void AddEdge(int32_t from, int32_t to, std::vector<int64_t> costs) {
    if (from == to) {
      const int32_t size = SizeOf(from);
      for (int32_t i = 0; i < size; ++i) {
        int64_t& cost = nodes_[from].costs[i];
        cost = AddCosts(cost, costs[i * size + i]);
      }
      return;
    }
    const auto known = adjacent_[from].find(to);
    if (known != adjacent_[from].end()) {
      const Sight sight = See(from, known->second);
      const int32_t rows = SizeOf(from);
      const int32_t columns = SizeOf(to);
      for (int32_t i = 0; i < rows; ++i) {
        for (int32_t j = 0; j < columns; ++j) {
          int64_t& cost = sight.At(i, j);
          cost = AddCosts(cost, costs[i * columns + j]);
        }
      }
      PushEdge(known->second);
      return;
    }
    const auto edge = static_cast<int32_t>(edges_.size());
    edges_.push_back({from, to, std::move(costs)});
    is_edge_queued_.push_back(false);
    PushEdge(edge);
    adjacent_[from][to] = edge;
    adjacent_[to][from] = edge;
  }

  void RemoveEdge(int32_t edge) {
    Edge& gone = edges_[edge];
    adjacent_[gone.from].erase(gone.to);
    adjacent_[gone.to].erase(gone.from);
    Push(gone.from);
    Push(gone.to);
    std::vector<int64_t>().swap(gone.costs);
  }

  void Drain() {
    while (result_.is_feasible_) {
      if (!edge_queue_.empty()) {
        const int32_t edge = edge_queue_.front();
        edge_queue_.pop_front();
        is_edge_queued_[edge] = false;
        if (!edges_[edge].costs.empty()) VisitEdge(edge);
      } else if (!queue_.empty()) {
        const int32_t v = queue_.front();
        queue_.pop_front();
        is_queued_[v] = false;
        if (is_alive_[v]) Visit(v);
      } else {
        return;
      }
    }
  }

  void Visit(int32_t v) {
    RemoveForbidden(v);
    if (!result_.is_feasible_) return;
    const size_t degree = adjacent_[v].size();
    if (SizeOf(v) > 1 && degree <= kDominanceDegree) RemoveDominated(v);
    if (SizeOf(v) == 1) return Fix(v);
    if (degree <= kDominanceDegree) {
      for (const auto& [other, edge] : adjacent_[v]) {
        if (Join(edge, v, other)) return;
      }
    }
    if (nodes_[v].usages.empty()) Eliminate(v);
  }

  void VisitEdge(int32_t edge) {
    int32_t from = edges_[edge].from;
    int32_t to = edges_[edge].to;
    ForbidUnsupported(edge, from, to);
    ForbidUnsupported(edge, to, from);
    if (RemoveSum(edge)) return;
    // If each determines the other, the one with fewer edges is joined to the other.
    if (adjacent_[from].size() > adjacent_[to].size()) std::swap(from, to);
    if (!Join(edge, from, to)) Join(edge, to, from);
  }

  /*! \brief Keeps the strategies that are marked. */
  void Keep(int32_t v, const std::vector<bool>& is_kept) {
    const int32_t size = SizeOf(v);
    for (const auto& [other, index] : adjacent_[v]) {
      Edge& edge = edges_[index];
      const int32_t others = SizeOf(other);
      std::vector<int64_t> costs;
      costs.reserve(edge.costs.size());
      const int32_t rows = edge.from == v ? size : others;
      const int32_t columns = edge.from == v ? others : size;
      for (int32_t i = 0; i < rows; ++i) {
        if (edge.from == v && !is_kept[i]) continue;
        for (int32_t j = 0; j < columns; ++j) {
          if (edge.to == v && !is_kept[j]) continue;
          costs.push_back(edge.costs[i * columns + j]);
        }
      }
      edge.costs = std::move(costs);
    }
    const auto keep = [&](auto* values) {
      size_t next = 0;
      for (int32_t i = 0; i < size; ++i) {
        if (is_kept[i]) (*values)[next++] = (*values)[i];
      }
      values->resize(next);
    };
    for (Usage& usage : nodes_[v].usages) keep(&usage.amounts);
    keep(&labels_[v]);
    keep(&nodes_[v].costs);
    for (const auto& [other, index] : adjacent_[v]) {
      Push(other);
      PushEdge(index);
    }
  }

  /*! \brief Forbids strategies of `v` that no strategy of the other end allows. */
  void ForbidUnsupported(int32_t edge, int32_t v, int32_t other) {
    const Sight sight = See(v, edge);
    const int32_t size = SizeOf(v);
    const int32_t others = SizeOf(other);
    for (int32_t i = 0; i < size; ++i) {
      bool is_allowed = false;
      for (int32_t j = 0; j < others && !is_allowed; ++j) is_allowed = sight.At(i, j) < kInfinite;
      if (is_allowed) continue;
      nodes_[v].costs[i] = kInfinite;
      Push(v);
    }
  }

  void RemoveForbidden(int32_t v) {
    const int32_t size = SizeOf(v);
    std::vector<bool> is_kept(size);
    for (int32_t i = 0; i < size; ++i) is_kept[i] = nodes_[v].costs[i] < kInfinite;
    const auto left = std::count(is_kept.begin(), is_kept.end(), true);
    if (left == 0) result_.is_feasible_ = false;
    if (left > 0 && left < size) Keep(v, is_kept);
  }

  /*! \brief True if `better` can replace `worse` whatever the neighbours choose. */
  bool Dominates(int32_t v, int32_t better, int32_t worse, int64_t* work) {
    const Node& node = nodes_[v];
    for (const Usage& usage : node.usages) {
      if (usage.amounts[better] > usage.amounts[worse]) return false;
    }
    int64_t left = node.costs[worse] - node.costs[better];
    // Edges may make up for a higher cost, so all of them count before it is decided.
    for (const auto& [other, index] : adjacent_[v]) {
      const Sight sight = See(v, index);
      const int32_t others = SizeOf(other);
      int64_t least = kInfinite;
      for (int32_t j = 0; j < others; ++j) {
        const int64_t ours = sight.At(better, j);
        const int64_t theirs = sight.At(worse, j);
        if (theirs >= kInfinite) continue;
        if (ours >= kInfinite) return false;
        least = std::min(least, theirs - ours);
      }
      *work -= others;
      if (least < kInfinite) left += least;
      if (*work < 0) return false;
    }
    return left >= 0;
  }

  void RemoveDominated(int32_t v) {
    Digest digest;
    digest.Add(nodes_[v].costs);
    digest.Add(static_cast<int64_t>(nodes_[v].usages.size()));
    for (const Usage& usage : nodes_[v].usages) digest.Add(usage.amounts);
    for (const auto& [other, index] : adjacent_[v]) {
      digest.Add(edges_[index].from == v);
      digest.Add(edges_[index].costs);
    }
    auto [known, is_new] = undominated_.try_emplace(digest);
    if (is_new) known->second = FindUndominated(v);
    const std::vector<bool>& is_kept = known->second;
    if (std::find(is_kept.begin(), is_kept.end(), false) != is_kept.end()) Keep(v, is_kept);
  }

  std::vector<bool> FindUndominated(int32_t v) {
    const int32_t size = SizeOf(v);
    std::vector<bool> is_kept(size, true);
    int64_t work = kDominanceWork;
    for (int32_t worse = 0; worse < size && work > 0; ++worse) {
      for (int32_t better = 0; better < size; ++better) {
        if (better == worse || !is_kept[better]) continue;
        if (Dominates(v, better, worse, &work)) {
          is_kept[worse] = false;
          break;
        }
      }
    }
    return is_kept;
  }

  void Fix(int32_t v) {
    constant_ += nodes_[v].costs[0];
    const std::map<int32_t, int32_t> edges = adjacent_[v];
    for (const auto& [other, index] : edges) {
      const Sight sight = See(v, index);
      for (int32_t j = 0; j < SizeOf(other); ++j) {
        int64_t& cost = nodes_[other].costs[j];
        cost = AddCosts(cost, sight.At(0, j));
      }
      RemoveEdge(index);
      Push(other);
    }
    for (const Usage& usage : nodes_[v].usages) fixed_usages_.push_back(usage);
    Record(v, -1, -1, 1, {labels_[v][0]});
  }

  void Record(int32_t v, int32_t first, int32_t second, int32_t stride,
              std::vector<int16_t> table) {
    result_.removed_.push_back({v, first, second, stride, std::move(table)});
    is_alive_[v] = false;
    nodes_[v] = {};
    labels_[v].clear();
  }

  /*! \brief Removes an edge whose cost is one of either end plus one of the other; true if so. */
  bool RemoveSum(int32_t edge) {
    const int32_t v = edges_[edge].from;
    const int32_t other = edges_[edge].to;
    const Sight sight = See(v, edge);
    const int32_t size = SizeOf(v);
    const int32_t others = SizeOf(other);
    const int64_t corner = sight.At(0, 0);
    if (corner >= kInfinite) return false;
    for (int32_t i = 0; i < size; ++i) {
      for (int32_t j = 0; j < others; ++j) {
        const int64_t cost = sight.At(i, j);
        if (cost >= kInfinite || cost - sight.At(i, 0) != sight.At(0, j) - corner) return false;
      }
    }
    for (int32_t i = 0; i < size; ++i) {
      int64_t& cost = nodes_[v].costs[i];
      cost = AddCosts(cost, sight.At(i, 0));
    }
    for (int32_t j = 0; j < others; ++j) {
      int64_t& cost = nodes_[other].costs[j];
      cost = AddCosts(cost, sight.At(0, j) - corner);
    }
    RemoveEdge(edge);
    return true;
  }

  /*! \brief Makes `v` part of the other end if that one determines it; true if it did. */
  bool Join(int32_t edge, int32_t v, int32_t other) {
    const Sight sight = See(v, edge);
    const int32_t size = SizeOf(v);
    const int32_t others = SizeOf(other);
    std::vector<int32_t> mine(others, -1);
    for (int32_t j = 0; j < others; ++j) {
      for (int32_t i = 0; i < size; ++i) {
        if (sight.At(i, j) >= kInfinite) continue;
        if (mine[j] >= 0) return false;
        mine[j] = i;
      }
      if (mine[j] < 0) return false;
    }
    if (others > size) {
      int64_t growth = -static_cast<int64_t>(size) * others - kFreeEntries;
      for (const auto& [third, unused] : adjacent_[v]) {
        if (third == other || adjacent_[other].count(third) != 0) continue;
        growth += static_cast<int64_t>(others - size) * SizeOf(third);
      }
      if (growth > 0) return false;
    }
    JoinTo(v, other, mine);
    return true;
  }

  void JoinTo(int32_t v, int32_t target, const std::vector<int32_t>& mine) {
    const auto size = static_cast<int32_t>(mine.size());
    const std::map<int32_t, int32_t> edges = adjacent_[v];
    for (const auto& [other, index] : edges) {
      const Sight sight = See(v, index);
      if (other == target) {
        for (int32_t j = 0; j < size; ++j) {
          int64_t& cost = nodes_[target].costs[j];
          cost = AddCosts(cost, AddCosts(sight.At(mine[j], j), nodes_[v].costs[mine[j]]));
        }
        RemoveEdge(index);
        continue;
      }
      const int32_t others = SizeOf(other);
      std::vector<int64_t> costs;
      costs.reserve(static_cast<size_t>(size) * others);
      for (int32_t j = 0; j < size; ++j) {
        for (int32_t k = 0; k < others; ++k) costs.push_back(sight.At(mine[j], k));
      }
      RemoveEdge(index);
      AddEdge(target, other, std::move(costs));
    }
    for (const Usage& usage : nodes_[v].usages) {
      Usage joined{usage.begin, usage.end, {}};
      joined.amounts.reserve(size);
      for (const int32_t i : mine) joined.amounts.push_back(usage.amounts[i]);
      std::vector<Usage>& usages = nodes_[target].usages;
      const auto same = std::find_if(usages.begin(), usages.end(), [&](const Usage& known) {
        return known.begin == joined.begin && known.end == joined.end;
      });
      if (same == usages.end()) {
        usages.push_back(std::move(joined));
      } else {
        for (int32_t j = 0; j < size; ++j) same->amounts[j] += joined.amounts[j];
      }
    }
    std::vector<int16_t> table(sizes_[target], -1);
    for (int32_t j = 0; j < size; ++j) table[labels_[target][j]] = labels_[v][mine[j]];
    Record(v, target, -1, 1, std::move(table));
    Push(target);
  }

  /*! \brief Costs of a node and its edges to two neighbours, or fewer, as seen by them. */
  const Eliminated& FindEliminated(int32_t v, int32_t first, int32_t second) {
    Digest digest;
    digest.Add(nodes_[v].costs);
    for (int32_t other : {first, second}) {
      digest.Add(other >= 0);
      if (other < 0) continue;
      const Edge& edge = edges_[adjacent_[v].at(other)];
      digest.Add(edge.from == v);
      digest.Add(edge.costs);
    }
    auto [known, is_new] = eliminated_.try_emplace(digest);
    Eliminated& found = known->second;
    if (!is_new) return found;
    const auto see = [&](int32_t other) {
      return other < 0 ? Neighbour{1, {}}
                       : Neighbour{SizeOf(other), See(v, adjacent_[v].at(other))};
    };
    found = LeastOf(nodes_[v].costs, see(first), see(second));
    return found;
  }

  /*! \brief Eliminates a node without memory that has at most two neighbours. */
  void Eliminate(int32_t v) {
    const size_t degree = adjacent_[v].size();
    if (degree > 2) return;
    const int32_t size = SizeOf(v);
    const int32_t first = degree > 0 ? adjacent_[v].begin()->first : -1;
    const int32_t second = degree > 1 ? adjacent_[v].rbegin()->first : -1;
    const int32_t firsts = first >= 0 ? SizeOf(first) : 1;
    const int32_t seconds = second >= 0 ? SizeOf(second) : 1;
    if (degree == 2 && adjacent_[first].count(second) == 0 &&
        static_cast<int64_t>(firsts) * seconds >
            2 * static_cast<int64_t>(size) * (firsts + seconds) + kFreeEntries) {
      return;
    }
    const Eliminated& eliminated = FindEliminated(v, first, second);
    std::vector<int64_t> costs = eliminated.costs;
    const int32_t stride = second >= 0 ? sizes_[second] : 1;
    std::vector<int16_t> table(static_cast<size_t>(first >= 0 ? sizes_[first] : 1) * stride, -1);
    for (int32_t a = 0; a < firsts; ++a) {
      const int32_t row = first >= 0 ? labels_[first][a] : 0;
      for (int32_t b = 0; b < seconds; ++b) {
        const int16_t best = eliminated.best[a * seconds + b];
        const int32_t column = second >= 0 ? labels_[second][b] : 0;
        if (best >= 0) table[row * stride + column] = labels_[v][best];
      }
    }
    const std::map<int32_t, int32_t> edges = adjacent_[v];
    for (const auto& [other, index] : edges) RemoveEdge(index);
    Record(v, first, second, stride, std::move(table));
    if (degree == 0) {
      constant_ += costs[0];
    } else if (degree == 1) {
      for (int32_t a = 0; a < firsts; ++a) {
        int64_t& cost = nodes_[first].costs[a];
        cost = AddCosts(cost, costs[a]);
      }
    } else {
      AddEdge(first, second, std::move(costs));
      Push(second);
    }
    if (first >= 0) Push(first);
  }

  /*! \brief Leaves out times and strategies that cannot fit; true if anything changed. */
  bool ReduceMemory() {
    std::vector<int32_t> with_memory;
    std::vector<Node*> nodes;
    for (int32_t v = 0; v < static_cast<int32_t>(nodes_.size()); ++v) {
      if (!is_alive_[v] || nodes_[v].usages.empty()) continue;
      with_memory.push_back(v);
      nodes.push_back(&nodes_[v]);
    }
    Node fixed;  // one strategy
    fixed.usages = std::move(fixed_usages_);
    fixed_usages_.clear();
    nodes.push_back(&fixed);
    const std::vector<bool> changed = CompressTimes(nodes, &limits_, &result_.is_feasible_);
    if (!result_.is_feasible_) return false;
    bool is_changed = false;
    for (size_t n = 0; n < with_memory.size(); ++n) {
      const int32_t v = with_memory[n];
      if (changed[n]) {
        Push(v);
        is_changed = true;
      }
      if (RemoveTooLarge(v)) {
        Push(v);
        is_changed = true;
      }
      if (!result_.is_feasible_) return false;
    }
    return is_changed;
  }

  /*! \brief Removes strategies that exceed a limit whatever the other nodes take. */
  bool RemoveTooLarge(int32_t v) {
    const int32_t size = SizeOf(v);
    std::vector<bool> is_kept(size, true);
    for (const Usage& usage : nodes_[v].usages) {
      const int64_t limit =
          *std::min_element(limits_.begin() + usage.begin, limits_.begin() + usage.end);
      for (int32_t i = 0; i < size; ++i) {
        if (usage.amounts[i] > limit) is_kept[i] = false;
      }
    }
    const auto left = std::count(is_kept.begin(), is_kept.end(), true);
    if (left == size) return false;
    if (left == 0) {
      result_.is_feasible_ = false;
      return false;
    }
    Keep(v, is_kept);
    return true;
  }

  void Finish() {
    Problem& reduced = result_.reduced_;
    reduced.constant = constant_;
    reduced.limits = std::move(limits_);
    std::vector<int32_t> place(nodes_.size(), -1);
    for (int32_t v = 0; v < static_cast<int32_t>(nodes_.size()); ++v) {
      if (!is_alive_[v]) continue;
      place[v] = static_cast<int32_t>(result_.kept_.size());
      result_.kept_.push_back(v);
      result_.labels_.push_back(std::move(labels_[v]));
      reduced.nodes.push_back(std::move(nodes_[v]));
    }
    for (int32_t v = 0; v < static_cast<int32_t>(adjacent_.size()); ++v) {
      for (const auto& [other, index] : adjacent_[v]) {
        Edge& edge = edges_[index];
        if (edge.from != v) continue;
        reduced.edges.push_back({place[v], place[other], std::move(edge.costs)});
      }
    }
  }

  Reduction& result_;
  int64_t constant_ = 0;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<std::map<int32_t, int32_t>> adjacent_;  // from neighbour to edge
  std::vector<bool> is_alive_;
  std::vector<bool> is_queued_;
  std::vector<bool> is_edge_queued_;
  std::vector<std::vector<int16_t>> labels_;
  std::vector<int32_t> sizes_;  // before any reduction
  std::vector<Usage> fixed_usages_;
  std::vector<int64_t> limits_;
  std::unordered_map<Digest, std::vector<bool>, Digest::Hash> undominated_;
  std::unordered_map<Digest, Eliminated, Digest::Hash> eliminated_;
  std::deque<int32_t> queue_;
  std::deque<int32_t> edge_queue_;
};

Reduction::Reduction(Problem problem) { Reducer(std::move(problem), this).Run(); }

Choice Reduction::Expand(const Choice& choice) const {
  Choice expanded(original_size_, -1);
  for (size_t n = 0; n < kept_.size(); ++n) expanded[kept_[n]] = labels_[n][choice[n]];
  for (auto removed = removed_.rbegin(); removed != removed_.rend(); ++removed) {
    const int32_t row = removed->first >= 0 ? expanded[removed->first] : 0;
    const int32_t column = removed->second >= 0 ? expanded[removed->second] : 0;
    // A pair that no strategy allows is forbidden; any strategy will do.
    const int32_t found = removed->table[row * removed->stride + column];
    expanded[removed->node] = found < 0 ? 0 : found;
  }
  return expanded;
}

Choice Reduction::Restrict(const Choice& choice) const {
  Choice restricted(kept_.size(), -1);
  for (size_t n = 0; n < kept_.size(); ++n) {
    const auto found = std::find(labels_[n].begin(), labels_[n].end(), choice[kept_[n]]);
    if (found != labels_[n].end()) restricted[n] = static_cast<int32_t>(found - labels_[n].begin());
  }
  return restricted;
}

}  // namespace distir::autoshard
