// Finds which calls TVM would fuse, by post-dominators and op patterns.
#include "autosharding/fusion.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

namespace distir::autosharding {

using propagation::FunctionGraph;
using propagation::Node;

namespace {

constexpr int kNone = -1;

class Fusion {
 public:
  Fusion(const FunctionGraph& graph, const OfKernels& patterns) : graph_(graph) {
    for (const std::vector<int>& each : patterns) {
      first_.push_back(static_cast<int>(patterns_.size()));
      patterns_.insert(patterns_.end(), each.begin(), each.end());
    }
    first_.push_back(static_cast<int>(patterns_.size()));
    group_.resize(patterns_.size());
    std::iota(group_.begin(), group_.end(), 0);
    readers_.resize(patterns_.size());
    is_outside_.resize(patterns_.size(), false);
    of_group_ = patterns_;
    ReadEdges();
    FindDominators();
  }

  OfKernels Run() {
    for (int phase : {0, 1}) {
      for (size_t i = 0; i < group_.size(); ++i) Join(static_cast<int>(i), phase);
    }
    OfKernels groups(first_.size() - 1);
    for (size_t node = 0; node < groups.size(); ++node) {
      for (int i = first_[node]; i < first_[node + 1]; ++i) groups[node].push_back(Find(i));
    }
    return groups;
  }

 private:
  struct Reader {
    int node;
    int pattern;  // of the reader for this operand
  };

  void ReadEdges() {
    std::vector<int> maker(graph_.slots.size(), kNone);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (int slot : graph_.nodes[i].results) maker[slot] = first_[i + 1] - 1;
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const int reader = first_[i];
      for (int next = reader + 1; next < first_[i + 1]; ++next)
        readers_[next - 1].push_back({next, AsElementwise(patterns_[next], true)});
      if (patterns_[reader] == kLeftOut) continue;
      for (int slot : node.operands) {
        if (maker[slot] == kNone || maker[slot] >= reader) continue;
        const bool has_shape =
            !node.results.empty() &&
            graph_.slots[slot].sizes.size() == graph_.slots[node.results[0]].sizes.size() &&
            std::equal(graph_.slots[slot].sizes.begin(), graph_.slots[slot].sizes.end(),
                       graph_.slots[node.results[0]].sizes.begin());
        readers_[maker[slot]].push_back({reader, AsElementwise(patterns_[reader], has_shape)});
      }
    }
    for (const propagation::CallSite& site : graph_.calls) {
      for (int slot : site.arguments) {
        if (maker[slot] != kNone) is_outside_[maker[slot]] = true;
      }
    }
  }

  /*! \brief A broadcasting call is elementwise for operands of the result's shape. */
  static int AsElementwise(int pattern, bool has_shape) {
    return pattern == kBroadcast && has_shape ? kElementwise : pattern;
  }

  void FindDominators() {
    const int count = static_cast<int>(patterns_.size());
    parent_.assign(count, kNone);
    path_.assign(count, kOpaque);
    depth_.assign(count, 0);
    for (int i = count; i-- > 0;) {
      if (is_outside_[i] || readers_[i].empty() || patterns_[i] == kLeftOut) continue;
      int meet = readers_[i][0].node;
      int pattern = readers_[i][0].pattern;
      for (size_t r = 1; r < readers_[i].size() && meet != kNone; ++r) {
        pattern = std::max(pattern, readers_[i][r].pattern);
        meet = Meet(meet, readers_[i][r].node, &pattern);
      }
      parent_[i] = meet;
      path_[i] = pattern;
      depth_[i] = meet == kNone ? 0 : depth_[meet] + 1;
    }
  }

  /*! \brief The first call that both lead to. */
  int Meet(int a, int b, int* pattern) const {
    while (a != b) {
      if (a == kNone || b == kNone) return kNone;
      int& deeper = depth_[a] >= depth_[b] ? a : b;
      *pattern = std::max(*pattern, path_[deeper]);
      deeper = parent_[deeper];
    }
    return a;
  }

  int Find(int node) {
    while (group_[node] != node) node = group_[node] = group_[group_[node]];
    return node;
  }

  /*! \brief True if all calls from a node to its dominator, which comes last, are allowed. */
  bool AllowsPath(int from, int sink, const std::function<bool(int, bool)>& allows) {
    std::set<int> seen;
    std::vector<int> todo = {from};
    while (!todo.empty()) {
      const int node = todo.back();
      todo.pop_back();
      for (const Reader& reader : readers_[node]) {
        if (!seen.insert(reader.node).second) continue;
        if (!allows(of_group_[Find(reader.node)], reader.node == sink)) return false;
        if (reader.node != sink) todo.push_back(reader.node);
      }
    }
    return true;
  }

  void Commit(int from, int sink) {
    std::set<int> seen;
    std::vector<int> todo = {from};
    while (!todo.empty()) {
      const int node = todo.back();
      todo.pop_back();
      if (node == sink || !seen.insert(node).second) continue;
      const int child = Find(node);
      const int whole = Find(sink);
      if (child != whole) {
        group_[child] = whole;
        of_group_[whole] = std::max(of_group_[whole], of_group_[child]);
      }
      for (const Reader& reader : readers_[node]) todo.push_back(reader.node);
    }
  }

  void Join(int node, int phase) {
    const int sink = parent_[node];
    if (sink == kNone || Find(node) == Find(sink)) return;
    const int pattern = of_group_[Find(node)];
    if (pattern == kEpilogue) {
      if (phase == 0 && path_[node] == kElementwise &&
          AllowsPath(node, sink, [](int kind, bool) { return kind <= kBroadcast; }))
        Commit(node, sink);
    } else if (pattern <= kBroadcast) {
      const auto allows = [](int kind, bool is_sink) {
        return kind <= kInjective || (is_sink && (kind == kReduction || kind == kEpilogue));
      };
      if ((path_[node] <= kInjective || path_[node] == kReduction) &&
          AllowsPath(node, sink, allows))
        Commit(node, sink);
    } else if (pattern == kInjective && phase == 1) {
      if (AllowsPath(node, sink, [](int kind, bool) { return kind <= kInjective; }))
        Commit(node, sink);
    }
  }

  const FunctionGraph& graph_;
  std::vector<int> first_;  // kernel of each node, and the number of kernels
  std::vector<int> patterns_, group_, of_group_, parent_, path_, depth_;  // by kernel
  std::vector<std::vector<Reader>> readers_;
  std::vector<bool> is_outside_;
};

}  // namespace

OfKernels FusedGroups(const FunctionGraph& graph, const OfKernels& patterns) {
  return Fusion(graph, patterns).Run();
}

}  // namespace distir::autosharding
