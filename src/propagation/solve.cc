// Meshes, then axes, for the slots of an unfolded program; the contract is in instances.h.
#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "propagation/instances.h"
#include "rules/projection.h"

namespace distir {
namespace propagation {

namespace {

using mesh::AxisList;
using rules::FactorShardings;

/*! \brief The links that touch each slot, in program order. */
class LinksOfSlots {
 public:
  explicit LinksOfSlots(const Program& program) : begin_(program.slots.size() + 1, 0) {
    ForEachUse(program, [this](int slot, int) { ++begin_[slot + 1]; });
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    links_.resize(begin_.back());
    std::vector<int> next(begin_.begin(), begin_.end() - 1);
    ForEachUse(program, [&](int slot, int link) { links_[next[slot]++] = link; });
  }

  IntRange operator[](int slot) const {
    return {links_.data() + begin_[slot], links_.data() + begin_[slot + 1]};
  }

 private:
  /*! \brief Calls `visit` once for each slot of each link. */
  template <typename Visit>
  static void ForEachUse(const Program& program, const Visit& visit) {
    std::vector<int> last(program.slots.size(), -1);
    for (size_t l = 0; l < program.links.size(); ++l) {
      const Link& link = program.links[l];
      for (IntRange slots : {program.Operands(link), program.Results(link)}) {
        for (int slot : slots) {
          if (std::exchange(last[slot], static_cast<int>(l)) != static_cast<int>(l))
            visit(slot, static_cast<int>(l));
        }
      }
    }
  }

  std::vector<int> begin_;  // per slot, where its links begin
  std::vector<int> links_;
};

class MeshSolver {
 public:
  MeshSolver(Program* program, const LinksOfSlots& users) : program_(*program), users_(users) {}

  void Run() {
    std::vector<int> all(program_.links.size());
    std::iota(all.begin(), all.end(), 0);
    forward_.assign(all.begin(), all.end());
    backward_ = forward_;
    // Forward always first: a value belongs to the mesh that computes it, not to one that will use
    // it.
    while (!forward_.empty() || !backward_.empty()) {
      bool is_forward = !forward_.empty();
      std::deque<int>& queue = is_forward ? forward_ : backward_;
      int link = queue.front();
      queue.pop_front();
      Visit(program_.links[link], is_forward);
    }
    int fallback = kNoRoot;
    for (const SlotState& slot : program_.slots) {
      if (fallback == kNoRoot) fallback = slot.root;
    }
    for (SlotState& slot : program_.slots) {
      if (slot.root == kNoRoot) slot.root = std::max(fallback, 0);
    }
  }

 private:
  void Visit(const Link& link, bool is_forward) {
    if (is_forward) {
      int root = LastRoot(program_.Operands(link));
      if (root != kNoRoot) AssignAll(program_.Results(link), root);
    } else {
      int root = LastRoot(program_.Results(link));
      if (root == kNoRoot) root = LastRoot(program_.Operands(link));
      if (root != kNoRoot) AssignAll(program_.Operands(link), root);
    }
  }

  int LastRoot(IntRange slots) const {
    int root = kNoRoot;
    for (int slot : slots) root = std::max(root, program_.slots[slot].root);
    return root;
  }

  void AssignAll(IntRange slots, int root) {
    for (int slot : slots) {
      if (program_.slots[slot].root != kNoRoot) continue;
      program_.slots[slot].root = root;
      for (int link : users_[slot]) {
        forward_.push_back(link);
        backward_.push_back(link);
      }
    }
  }

  Program& program_;
  const LinksOfSlots& users_;
  std::deque<int> forward_, backward_;
};

class AxisSolver {
 public:
  AxisSolver(Program* program, const LinksOfSlots& users, std::vector<Step>* steps)
      : program_(*program),
        users_(users),
        steps_(*steps),
        queued_(program->links.size(), false),
        has_conflict_(program->links.size(), false) {}

  void Run() {
    for (size_t s = 0; s < program_.slots.size(); ++s) {
      const SlotState& slot = program_.slots[s];
      if (!slot.is_stated) continue;
      for (size_t d = 0; d < slot.sharding.dims.size(); ++d) {
        if (!slot.sharding.dims[d].empty()) {
          steps_.push_back(
              {static_cast<int>(s), static_cast<int>(d), slot.sharding.dims[d], -1, -1});
        }
      }
    }
    for (size_t l = 0; l < program_.links.size(); ++l) Enqueue(static_cast<int>(l));
    Drain(/*resolve_conflicts=*/false);
    // Where everything agreed, resolving conflicts would change nothing.
    for (size_t l = 0; l < program_.links.size(); ++l) {
      if (has_conflict_[l]) Enqueue(static_cast<int>(l));
    }
    Drain(/*resolve_conflicts=*/true);
  }

 private:
  void Drain(bool resolve_conflicts) {
    while (true) {
      std::deque<int>& queue = pass_through_.empty() ? others_ : pass_through_;
      if (queue.empty()) return;
      int link = queue.front();
      queue.pop_front();
      queued_[link] = false;
      Visit(link, resolve_conflicts);
    }
  }

  void Enqueue(int link) {
    if (queued_[link]) return;
    queued_[link] = true;
    (program_.links[link].rule->is_pass_through ? pass_through_ : others_).push_back(link);
  }

  /*! \brief What one tensor of a link says. */
  struct View {
    int slot;
    const rules::TensorFactors* tensor;
    FactorShardings factors;  // empty when the tensor has no axes
  };

  double Elements(const View& view) const { return program_.slots[view.slot].info->elements; }

  void Visit(int index, bool resolve_conflicts) {
    const Link& link = program_.links[index];
    views_.clear();
    bool any = false;
    int root = kNoRoot;
    for (int slot : program_.Results(link)) root = std::max(root, program_.slots[slot].root);
    if (root == kNoRoot) return;
    auto collect = [&](IntRange slots, const std::vector<rules::TensorFactors>& tensors) {
      for (size_t i = 0; i < slots.size(); ++i) {
        const SlotState& slot = program_.slots[slots[i]];
        if (slot.root != root || slot.info->is_constant) continue;
        views_.push_back({slots[i], &tensors[i], {}});
        if (slot.sharding.IsReplicated()) continue;
        views_.back().factors.resize(link.rule->factors.size());
        rules::Project(*link.rule, tensors[i], slot.sharding, &views_.back().factors);
        any = true;
      }
    };
    collect(program_.Operands(link), link.rule->operands);
    collect(program_.Results(link), link.rule->results);
    if (!any) return;

    FactorShardings merged(link.rule->factors.size());
    std::vector<int> source(link.rule->factors.size(), -1);
    if (resolve_conflicts) {
      MergeByPriority(*link.rule, &merged, &source);
    } else {
      has_conflict_[index] = !MergeWhereAgreed(*link.rule, &merged, &source);
    }
    // What the call cannot compute on shards is not spread: it would only have to be moved.
    rules::DropUnnestable(*link.rule, &merged);
    for (const View& view : views_) Apply(index, *link.rule, view, merged, source);
  }

  // The longest list when all are prefixes of it, else the common prefix; without axes that any
  // other factor wants too. Returns whether every factor got its longest list.
  bool MergeWhereAgreed(const rules::FactorRule& rule, FactorShardings* merged,
                        std::vector<int>* source) const {
    bool agreed = true;
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (rule.factors[f].kind == rules::FactorKind::kReplicate) continue;
      const AxisList* longest = nullptr;
      for (const View& view : views_) {
        if (view.factors.empty() || view.factors[f].empty()) continue;
        if (longest == nullptr || mesh::NumShards(view.factors[f]) > mesh::NumShards(*longest)) {
          longest = &view.factors[f];
          (*source)[f] = view.slot;
        }
      }
      if (longest == nullptr) continue;
      AxisList axes = *longest;
      for (const View& view : views_) {
        if (view.factors.empty()) continue;
        if (!view.factors[f].empty() && !mesh::IsPrefix(view.factors[f], axes)) {
          axes = mesh::CommonPrefix(view.factors[f], axes);
        }
        for (size_t g = 0; g < rule.factors.size(); ++g) {
          if (g != f && !view.factors[g].empty())
            axes = mesh::PrefixDisjointFrom(axes, view.factors[g]);
        }
      }
      agreed = agreed && mesh::NumShards(axes) == mesh::NumShards(*longest);
      (*merged)[f] = std::move(axes);
    }
    return agreed;
  }

  void MergeByPriority(const rules::FactorRule& rule, FactorShardings* merged,
                       std::vector<int>* source) const {
    struct Choice {
      size_t factor;
      const View* view;
    };
    std::vector<Choice> choices;
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (rule.factors[f].kind == rules::FactorKind::kReplicate) continue;
      const View* best = nullptr;
      for (const View& view : views_) {
        if (view.factors.empty() || view.factors[f].empty()) continue;
        if (best == nullptr || Elements(view) > Elements(*best)) best = &view;
      }
      if (best != nullptr) choices.push_back({f, best});
    }
    std::stable_sort(choices.begin(), choices.end(), [this](const Choice& a, const Choice& b) {
      return Elements(*a.view) > Elements(*b.view);
    });
    AxisList taken;
    for (const Choice& choice : choices) {
      AxisList axes = mesh::PrefixDisjointFrom(choice.view->factors[choice.factor], taken);
      taken.insert(taken.end(), axes.begin(), axes.end());
      (*merged)[choice.factor] = std::move(axes);
      (*source)[choice.factor] = choice.view->slot;
    }
  }

  void Apply(int link, const rules::FactorRule& rule, const View& view,
             const FactorShardings& merged, const std::vector<int>& source) {
    SlotState& slot = program_.slots[view.slot];
    if (slot.is_stated) return;
    mesh::Sharding composed = rules::Compose(rule, *view.tensor, merged);
    bool changed = false;
    for (size_t d = 0; d < composed.dims.size(); ++d) {
      AxisList& current = slot.sharding.dims[d];
      if (mesh::NumShards(composed.dims[d]) <= mesh::NumShards(current)) continue;
      if (!mesh::IsPrefix(current, composed.dims[d])) continue;
      AxisList used;
      for (size_t other = 0; other < composed.dims.size(); ++other) {
        if (other != d)
          used.insert(used.end(), slot.sharding.dims[other].begin(),
                      slot.sharding.dims[other].end());
      }
      AxisList extended = rules::FittingPrefix(mesh::PrefixDisjointFrom(composed.dims[d], used),
                                               slot.info->sizes[d]);
      if (mesh::NumShards(extended) <= mesh::NumShards(current)) continue;
      current = std::move(extended);
      int from = -1;
      for (int f : (*view.tensor)[d]) {
        if (!merged[f].empty() && source[f] != view.slot) from = source[f];
      }
      steps_.push_back({view.slot, static_cast<int>(d), current, from, link});
      changed = true;
    }
    if (!changed) return;
    for (int user : users_[view.slot]) Enqueue(user);
  }

  Program& program_;
  const LinksOfSlots& users_;
  std::vector<Step>& steps_;
  std::vector<bool> queued_;
  std::vector<bool> has_conflict_;  // as of the link's last visit that did not resolve them
  std::deque<int> pass_through_, others_;
  std::vector<View> views_;  // of the link being visited
};

}  // namespace

void Solve(Program* program, std::vector<Step>* steps) {
  LinksOfSlots users(*program);
  MeshSolver(program, users).Run();
  AxisSolver(program, users, steps).Run();
}

}  // namespace propagation
}  // namespace distir
