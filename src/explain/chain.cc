// Searches breadth-first for the shortest chain from a sharded dimension to the annotation that
// states it.
#include "explain/chain.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <set>
#include <tuple>

namespace distir::explain {

namespace {

using propagation::Node;

bool Has(const Fact& fact, int root, size_t dim, const mesh::AxisRef& axis) {
  return fact.root == root && dim < fact.sharding.dims.size() &&
         mesh::Overlaps({axis}, fact.sharding.dims[dim]);
}

/*! \brief For each dimension of `from` the first dimension of `to` that shares a factor with it. */
std::vector<int> LinkedDims(const rules::FactorRule& rule, const rules::TensorFactors& from,
                            const rules::TensorFactors& to) {
  std::vector<int> linked(from.size(), -1);
  for (size_t d = 0; d < from.size(); ++d) {
    for (int f : from[d]) {
      if (rule.factors[f].Is<rules::ReplicatedFactor>()) continue;
      for (size_t e = 0; e < to.size() && linked[d] < 0; ++e) {
        if (std::find(to[e].begin(), to[e].end(), f) != to[e].end())
          linked[d] = static_cast<int>(e);
      }
    }
  }
  return linked;
}

class Search {
 public:
  /*! \param is_upstream True if to look only at what a value is computed from. */
  Search(Program* program, int root, const mesh::AxisRef& axis, bool is_upstream)
      : program_(*program), root_(root), axis_(axis), is_upstream_(is_upstream) {}

  std::optional<std::vector<Hop>> Run(const Place& from) {
    Enter(from, -1, "", {});
    for (size_t next = 0; next < seen_.size(); ++next) {
      const Place at = seen_[next].hop.to;
      root_ = seen_[next].root;
      axis_ = seen_[next].axis;
      if (at.view->facts[at.slot].States(at.dim, axis_)) return HopsTo(static_cast<int>(next));
      for (int n : at.view->nodes_of_slot[at.slot]) {
        const Node& node = at.view->graph.nodes[n];
        if (node.crossing != nullptr) {
          Cross(static_cast<int>(next), at, node);
        } else {
          EnterNode(static_cast<int>(next), at, node);
        }
      }
      for (const auto& [other, is_upstream] : program_.AcrossCalls({at.view, at.slot})) {
        if (is_upstream_ && !is_upstream) continue;
        std::vector<int> same(at.view->facts[at.slot].sharding.dims.size());
        std::iota(same.begin(), same.end(), 0);
        Enter({other.view, other.slot, at.dim}, static_cast<int>(next), "call", std::move(same));
      }
    }
    return std::nullopt;
  }

 private:
  struct Seen {
    Hop hop;
    int before;  // in seen_
    int root;
    mesh::AxisRef axis;  // on this root
  };

  void Enter(const Place& place, int before, const std::string& through, std::vector<int> dims) {
    if (!Has(place.view->facts[place.slot], root_, place.dim, axis_)) return;
    if (!entered_.insert({place.view, place.slot, place.dim}).second) return;
    seen_.push_back({{place, through, std::move(dims)}, before, root_, axis_});
  }

  void EnterNode(int before, const Place& at, const Node& node) {
    const rules::TensorFactors* from = nullptr;
    auto find = [&](const SlotList& slots, const std::vector<rules::TensorFactors>& tensors) {
      for (size_t i = 0; i < slots.size() && i < tensors.size(); ++i) {
        if (slots[i] == at.slot && from == nullptr) from = &tensors[i];
      }
    };
    if (!is_upstream_) find(node.operands, node.rule->operands);
    find(node.results, node.rule->results);
    if (from == nullptr || at.dim >= static_cast<int>(from->size())) return;
    auto enter = [&](const SlotList& slots, const std::vector<rules::TensorFactors>& tensors) {
      for (size_t i = 0; i < slots.size() && i < tensors.size(); ++i) {
        if (slots[i] == at.slot) continue;
        std::vector<int> dims = LinkedDims(*node.rule, *from, tensors[i]);
        const int dim = dims[at.dim];
        if (dim >= 0) Enter({at.view, slots[i], dim}, before, node.name, std::move(dims));
      }
    };
    enter(node.operands, node.rule->operands);
    if (!is_upstream_) enter(node.results, node.rule->results);
  }

  /*! \brief Crosses the border of a manual region, behind which the axis has another name. */
  void Cross(int before, const Place& at, const Node& node) {
    const bool is_result = node.results[0] == at.slot;
    if (is_upstream_ && !is_result) return;
    const dialect::ManualRegion& region = *node.crossing->region;
    const bool is_inside = is_result == node.crossing->enters;
    const mesh::AxisList axis = is_inside ? region.Outside({axis_}) : region.Inside({axis_});
    if (axis.size() != 1) return;
    root_ = is_inside ? region.outer : region.inner;
    axis_ = axis[0];
    // A sharding cannot be carried along: its axes are those of one side.
    std::vector<int> none(at.view->facts[at.slot].sharding.dims.size(), -1);
    Enter({at.view, is_result ? node.operands[0] : node.results[0], at.dim}, before, node.name,
          std::move(none));
    root_ = seen_[before].root;
    axis_ = seen_[before].axis;
  }

  std::vector<Hop> HopsTo(int index) const {
    std::vector<Hop> hops;
    for (; seen_[index].before >= 0; index = seen_[index].before) hops.push_back(seen_[index].hop);
    std::reverse(hops.begin(), hops.end());
    return hops;
  }

  Program& program_;
  int root_;  // of what is being visited
  mesh::AxisRef axis_;
  const bool is_upstream_;
  std::set<std::tuple<const FunctionView*, int, int>> entered_;
  std::deque<Seen> seen_;
};

}  // namespace

std::optional<std::vector<Hop>> FindChain(Program* program, const Place& from,
                                          const mesh::AxisRef& axis) {
  const int root = from.view->facts[from.slot].root;
  auto hops = Search(program, root, axis, true).Run(from);
  return hops ? hops : Search(program, root, axis, false).Run(from);
}

std::optional<mesh::Sharding> Carry(const mesh::Sharding& sharding, const std::vector<Hop>& hops) {
  mesh::Sharding carried = sharding;
  for (const Hop& hop : hops) {
    mesh::Sharding next =
        mesh::Sharding::Replicated(hop.to.view->facts[hop.to.slot].sharding.dims.size());
    for (size_t d = 0; d < carried.dims.size(); ++d) {
      if (carried.dims[d].empty()) continue;
      const int to = d < hop.dims.size() ? hop.dims[d] : -1;
      if (to < 0 || to >= static_cast<int>(next.dims.size()) || !next.dims[to].empty())
        return std::nullopt;
      next.dims[to] = carried.dims[d];
    }
    carried = std::move(next);
  }
  return carried;
}

}  // namespace distir::explain
