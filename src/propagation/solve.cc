// Solves an unfolded program: first the mesh of each tensor (slot), then its axes. The contract is
// in instances.h.
#include <algorithm>
#include <deque>
#include <set>
#include <unordered_set>
#include <utility>

#include "propagation/instances.h"
#include "propagation/solving/known_visits.h"
#include "propagation/solving/link_cost.h"
#include "propagation/solving/links_of_slots.h"
#include "propagation/solving/meshes.h"
#include "rules/call/call_cost.h"
#include "rules/call/projection.h"
#include "rules/call/ways.h"
#include "support/words.h"

namespace distir::propagation {

namespace {

using mesh::AxisList;
using rules::FactorShardings;

class AxisSolver {
 public:
  AxisSolver(Program* program, const LinksOfSlots& users, const dialect::MeshTable& meshes,
             planning::Planner* planner)
      : program_(*program),
        users_(users),
        meshes_(meshes),
        planner_(*planner),
        queued_(program->links.size(), false),
        waits_(program->links.size(), false),
        states_(program),
        known_visits_(&states_),
        link_cost_(program, users, meshes, planner) {}

  void Run() {
    for (int priority : Priorities()) {
      Admit(priority);
      for (size_t l = 0; l < program_.links.size(); ++l) Enqueue(static_cast<int>(l));
      Drain(Stage::kParallel);
      EnqueueWaiting();
      Drain(Stage::kAgreed);
      EnqueueWaiting();
      Drain(Stage::kConflicts);
    }
    RehomeResults();
    for (const Link& link : program_.links) {
      if (link.is_identity && !link.blocked.forward && !link.blocked.backward)
        link_cost_.PriceAsRead(program_.Operands(link)[0], program_.Results(link)[0]);
    }
  }

 private:
  enum class Stage {
    kParallel,   // only parallel factors, and not from what is broadcast
    kAgreed,     // all factors, where the tensors of a link agree
    kConflicts,  // all factors
  };

  /*! \brief The priorities that dimensions have, 0 always among them. */
  std::set<int> Priorities() const {
    std::set<int> found = {0};
    for (const SlotState& slot : program_.slots) {
      if (slot.stated != nullptr)
        found.insert(slot.stated->priorities.begin(), slot.stated->priorities.end());
    }
    return found;
  }

  /*! \brief Lets what is stated with a priority up to this one count, and withholds the rest. */
  void Admit(int priority) {
    priority_ = priority;
    for (SlotState& slot : program_.slots) {
      const Source* stated = slot.stated;
      if (stated == nullptr || (stated->priorities.empty() && priority > 0)) continue;
      slot.withheld = stated->replicated;
      for (size_t d = 0; d < stated->sharding.dims.size(); ++d) {
        const AxisList& axes = stated->sharding.dims[d];
        if (stated->Priority(d) > priority) {
          slot.sharding.dims[d].clear();
          slot.withheld.insert(slot.withheld.end(), axes.begin(), axes.end());
        } else if (stated->Priority(d) == priority) {
          slot.sharding.dims[d] = axes;
        }
      }
    }
    states_.NumberAll();
    known_visits_.Clear();
  }

  /*! \brief Gives results of calls that cannot use axes of an operand the shardings with which
   * these axes serve other dimensions, if everything that follows from it is cheaper so. */
  void RehomeResults() {
    std::unordered_set<Words, HashWords> dearer;  // calls, by rule and states of tensors
    for (const Link& link : program_.links) {
      if (!link_cost_.HasUnusedAxes(link)) continue;
      Words key = {Address(link.rule)};
      for (IntRange slots : {program_.Operands(link), program_.Results(link)}) {
        for (int slot : slots) key.push_back(states_.Of(slot));
      }
      if (dearer.count(key) > 0) continue;
      if (!TryRehomed(link)) dearer.insert(std::move(key));
    }
  }

  using Journal = std::vector<std::pair<int, mesh::Sharding>>;  // slots, and what they had

  /*! \brief Gives results of a link the axes of its operands where that saves most, together with
   * what follows; false if it saves nothing. */
  bool TryRehomed(const Link& link) {
    const FactorShardings* best = nullptr;
    double most = 0;
    const std::vector<FactorShardings> ways = link_cost_.Rehomed(link);
    for (const FactorShardings& factors : ways) {
      Journal journal;
      ApplyToResults(link, factors, &journal);
      const double saved = Saved(&journal);
      for (auto change = journal.rbegin(); change != journal.rend(); ++change) {
        program_.slots[change->first].sharding = change->second;
        states_.Renumber(change->first);
      }
      if (saved <= most) continue;
      most = saved;
      best = &factors;
    }
    if (best != nullptr) ApplyToResults(link, *best, nullptr);
    return best != nullptr;
  }

  /*! \brief Gives results of a link the axes of factors, and solves what follows. */
  void ApplyToResults(const Link& link, const FactorShardings& factors, Journal* journal) {
    journal_ = journal;
    for (int r = 0; r < link.num_results; ++r)
      Apply(*link.rule, {program_.Results(link)[r], 0, &link.rule->results[r], true, {}}, factors);
    Drain(Stage::kConflicts);
    journal_ = nullptr;
  }

  /*! \brief Seconds that changes save of what is sent by the links of the slots. */
  double Saved(Journal* journal) {
    std::set<int> links;
    for (const auto& change : *journal) {
      for (int user : users_[change.first]) links.insert(user);
    }
    auto seconds = [&] {
      double sum = 0;
      for (int each : links) sum += link_cost_.Seconds(program_.links[each]);
      return sum;
    };
    auto swap = [&](auto begin, auto end) {
      for (auto change = begin; change != end; ++change)
        std::swap(program_.slots[change->first].sharding, change->second);
    };
    const double after = seconds();
    swap(journal->rbegin(), journal->rend());
    const double before = seconds();
    swap(journal->begin(), journal->end());
    const double saved = before - after;
    return saved > before * 1e-9 ? saved : 0;  // not a rounding error
  }

  bool IsOpen(const SlotState& slot, size_t dim) const {
    return slot.stated == nullptr ||
           (slot.stated->IsOpen(dim) && slot.stated->Priority(dim) <= priority_);
  }

  /*! \brief True if nothing is known of how a slot is sharded: it fits whatever is decided. */
  bool IsFree(const SlotState& slot) const {
    if (!slot.sharding.IsReplicated()) return false;
    for (size_t d = 0; slot.stated != nullptr && d < slot.sharding.dims.size(); ++d) {
      if (slot.stated->Priority(d) <= priority_ && !slot.stated->IsOpen(d)) return false;
    }
    return slot.stated == nullptr || !slot.sharding.dims.empty();
  }

  // Other links would give nothing new at the next stage.
  void EnqueueWaiting() {
    for (size_t l = 0; l < program_.links.size(); ++l) {
      if (waits_[l]) Enqueue(static_cast<int>(l));
    }
  }

  void Drain(Stage stage) {
    while (true) {
      std::deque<int>& queue = pass_through_.empty() ? others_ : pass_through_;
      if (queue.empty()) return;
      int link = queue.front();
      queue.pop_front();
      queued_[link] = false;
      Visit(link, stage);
    }
  }

  void Enqueue(int link) {
    if (queued_[link]) return;
    queued_[link] = true;
    (program_.links[link].rule->is_pass_through ? pass_through_ : others_).push_back(link);
  }

  /*! \brief Sharding that one tensor of a link gives the factors. */
  struct View {
    int slot;
    int position;  // among the link's tensors, operands before results
    const rules::TensorFactors* tensor;
    bool is_result;
    FactorShardings factors;  // empty when the tensor has no axes
  };

  /*! \brief Shardings of the factors, merged over all tensors of a link. */
  struct Merged {
    FactorShardings factors;
    FactorShardings of_results;  // what results take: reduced factors keep nothing from them
  };

  double Elements(const View& view) const { return program_.slots[view.slot].info->elements; }

  void Visit(int index, Stage stage) {
    const Link& link = program_.links[index];
    if (link.crossing != nullptr) return Cross(link);
    outcome_ = {};
    if (!KnownVisits::Takes(link)) {
      Work(link, stage);
    } else if (const VisitOutcome* known =
                   known_visits_.Find(program_, link, static_cast<int>(stage))) {
      Repeat(link, *known);
      if (known->waits) waits_[index] = *known->waits;
      return;
    } else {
      Work(link, stage);
      *known_visits_.Enter() = outcome_;
    }
    if (outcome_.waits) waits_[index] = *outcome_.waits;
  }

  /*! \brief Changes the tensors of a link as a visit alike has changed those of another. */
  void Repeat(const Link& link, const VisitOutcome& known) {
    for (const StateChange& change : known.changes) {
      const int slot = program_.Operands(link)[change.position];  // or a result, which follow
      Note(slot);
      program_.slots[slot].sharding = states_.ShardingOf(change.state);
      states_.Set(slot, change.state);
      EnqueueUsers(slot);
    }
  }

  void EnqueueUsers(int slot) {
    for (int user : users_[slot]) Enqueue(user);
  }

  /*! \brief Visits a link, and notes in outcome_ what that has given. */
  void Work(const Link& link, Stage stage) {
    ClearViews();
    bool any = false, skipped = false;
    // A tensor that is broadcast, as a bias, has no say in the dimensions that it lacks.
    double broadcast_to = 0;
    if (link.rule->is_pass_through) {
      for (int slot : program_.Results(link)) {
        broadcast_to = std::max(broadcast_to, program_.slots[slot].info->elements);
      }
    }
    int root = kNoRoot;
    for (int slot : program_.Results(link)) root = std::max(root, program_.slots[slot].root);
    if (root == kNoRoot) return;
    auto collect = [&](IntRange slots, const std::vector<rules::TensorFactors>& tensors,
                       bool is_result) {
      const int before = is_result ? link.num_operands : 0;
      for (size_t i = 0; i < slots.size(); ++i) {
        const SlotState& slot = program_.slots[slots[i]];
        if (slot.root != root || slot.info->is_constant) continue;
        views_.push_back({slots[i], before + static_cast<int>(i), &tensors[i], is_result, {}});
        if (slot.sharding.IsReplicated()) continue;
        if (is_result ? link.blocked.backward : link.blocked.forward) continue;
        if (stage == Stage::kParallel && slot.info->elements < broadcast_to) {
          skipped = true;
          continue;
        }
        if (!spare_.empty()) {
          views_.back().factors = std::move(spare_.back());
          spare_.pop_back();
        }
        views_.back().factors.resize(link.rule->factors.size());
        rules::Project(*link.rule, tensors[i], slot.sharding, &views_.back().factors);
        any = true;
      }
    };
    collect(program_.Operands(link), link.rule->operands, false);
    collect(program_.Results(link), link.rule->results, true);
    if (!any) {
      outcome_.waits = skipped;
      return;
    }

    const size_t num_factors = link.rule->factors.size();
    Merged& merged = merged_;
    merged.factors.assign(num_factors, {});
    merged.of_results.assign(num_factors, {});
    if (stage == Stage::kConflicts) {
      MergeByCost(link, root, &merged);
    } else {
      outcome_.waits = !MergeWhereAgreed(*link.rule, stage, &merged) || skipped;
    }
    ClearBlocked(*link.rule, &merged);
    // A sharding that the call cannot compute with is not spread: it would only have to be moved.
    rules::DropUnnestable(*link.rule, &merged.factors);
    rules::DropUnnestable(*link.rule, &merged.of_results);
    for (const View& view : views_) {
      if (view.is_result ? link.blocked.forward : link.blocked.backward) continue;
      Apply(*link.rule, view, view.is_result ? merged.of_results : merged.factors);
    }
  }

  /*! \brief Takes what the views have allocated for those of the next link. */
  void ClearViews() {
    for (View& view : views_) {
      if (view.factors.empty()) continue;
      view.factors.clear();
      spare_.push_back(std::move(view.factors));
    }
    views_.clear();
  }

  /*! \brief The automatic axes behind the manual ones of each dimension outside are those inside.
   */
  void Cross(const Link& link) {
    const Crossing& crossing = *link.crossing;
    const int ends[] = {program_.Operands(link)[0], program_.Results(link)[0]};
    const int outer = ends[crossing.enters ? 0 : 1], inner = ends[crossing.enters ? 1 : 0];
    for (size_t d = 0; d < crossing.manual.size(); ++d) {
      const AxisList& manual = crossing.manual[d];
      const AxisList outside = program_.slots[outer].sharding.dims[d];
      if (mesh::IsPrefix(manual, outside))
        ExtendEvenly(inner, d, crossing.region->Inside(mesh::RemovePrefix(outside, manual)));
      AxisList joined = manual;
      const AxisList inside = crossing.region->Outside(program_.slots[inner].sharding.dims[d]);
      joined.insert(joined.end(), inside.begin(), inside.end());
      ExtendEvenly(outer, d, mesh::Canonical(joined));
    }
  }

  void ExtendEvenly(int slot, size_t dim, const AxisList& axes) {
    const rules::Factor whole = {program_.slots[slot].info->sizes[dim], rules::ParallelFactor()};
    if (!Extend(slot, dim, axes, whole)) return;
    states_.Renumber(slot);
    EnqueueUsers(slot);
  }

  void ClearBlocked(const rules::FactorRule& rule, Merged* merged) const {
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (!rule.factors[f].is_blocked()) continue;
      bool has[2] = {false, false};  // operands, results
      for (const View& view : views_) {
        if (!view.factors.empty() && !view.factors[f].empty()) has[view.is_result] = true;
      }
      if (has[false] && has[true]) continue;
      merged->factors[f].clear();
      merged->of_results[f].clear();
    }
  }

  // The longest list when all are prefixes of it, else the common prefix; without axes that any
  // other factor wants too. Returns whether every factor got its longest list.
  bool MergeWhereAgreed(const rules::FactorRule& rule, Stage stage, Merged* merged) const {
    bool agreed = true;
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (rule.factors[f].Is<rules::ReplicatedFactor>()) continue;
      const AxisList* longest = nullptr;
      for (const View& view : views_) {
        if (view.factors.empty() || view.factors[f].empty()) continue;
        if (longest == nullptr || mesh::NumShards(view.factors[f]) > mesh::NumShards(*longest)) {
          longest = &view.factors[f];
        }
      }
      if (longest == nullptr) continue;
      if (stage == Stage::kParallel && !rule.factors[f].Is<rules::ParallelFactor>()) {
        agreed = false;
        continue;
      }
      AxisList axes = *longest;
      for (const View& view : views_) {
        if (view.factors.empty() || view.factors[f].empty()) continue;
        if (!mesh::IsPrefix(view.factors[f], axes)) {
          axes = mesh::CommonPrefix(view.factors[f], axes);
        }
      }
      AxisList of_results = axes;
      for (const View& view : views_) {
        if (view.factors.empty()) continue;
        for (size_t g = 0; g < rule.factors.size(); ++g) {
          if (g == f || view.factors[g].empty()) continue;
          axes = mesh::PrefixDisjointFrom(axes, view.factors[g]);
          if (rule.factors[g].Is<rules::ParallelFactor>()) {
            of_results = mesh::PrefixDisjointFrom(of_results, view.factors[g]);
          }
        }
      }
      agreed = agreed && mesh::NumShards(axes) == mesh::NumShards(*longest);
      merged->factors[f] = std::move(axes);
      merged->of_results[f] = std::move(of_results);
    }
    return agreed;
  }

  void MergeByCost(const Link& link, int root, Merged* merged) const {
    const rules::FactorRule& rule = *link.rule;
    std::vector<rules::FactorChoice> choices;
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      if (rule.factors[f].Is<rules::ReplicatedFactor>()) continue;
      const View* best = nullptr;
      for (const View& view : views_) {
        if (view.factors.empty() || view.factors[f].empty()) continue;
        if (best == nullptr || Elements(view) > Elements(*best)) best = &view;
      }
      if (best == nullptr) continue;
      choices.push_back({f, best->factors[f], Elements(*best)});
    }
    std::stable_sort(choices.begin(), choices.end(),
                     [](const rules::FactorChoice& a, const rules::FactorChoice& b) {
                       return a.priority > b.priority;
                     });
    std::vector<rules::TensorChoice> tensors;
    for (const View& view : views_)
      tensors.push_back({view.tensor, &view.factors, Elements(view), view.is_result});
    choices = rules::CheapestWay(rule, std::move(choices), tensors, /*is_final=*/false,
                                 CostOf(link, root));
    merged->factors = rules::Assign(rule, choices);
    std::vector<rules::FactorChoice> kept;
    for (const rules::FactorChoice& choice : choices) {
      if (!rule.IsCombined(choice.factor)) kept.push_back(choice);
    }
    merged->of_results = rules::Assign(rule, kept);
  }

  /*! \brief Cost of a link on a mesh, with its tensors placed as they are by now. */
  rules::CallCost CostOf(const Link& link, int root) const {
    rules::PricedTensors known[2];
    for (bool is_result : {false, true}) {
      for (int index : is_result ? program_.Results(link) : program_.Operands(link)) {
        const SlotState& slot = program_.slots[index];
        const bool is_free = slot.info->is_constant || slot.root != root || IsFree(slot);
        known[is_result].Add(is_free ? nullptr : &slot.sharding, slot.info->sizes,
                             slot.info->bytes());
      }
    }
    return rules::CallCost(&planner_, meshes_.Root(root), *link.rule, std::move(known[0]),
                           std::move(known[1]));
  }

  void Apply(const rules::FactorRule& rule, const View& view, const FactorShardings& merged) {
    SlotState& slot = program_.slots[view.slot];
    if (slot.stated != nullptr && !slot.stated->HasOpen()) return;
    if (std::all_of(merged.begin(), merged.end(),
                    [](const AxisList& axes) { return axes.empty(); }))
      return;
    mesh::Sharding composed = rules::Compose(
        rule, view.is_result ? rules::Side::kResult : rules::Side::kOperand, *view.tensor, merged);
    bool changed = false;
    for (size_t d = 0; d < composed.dims.size(); ++d) {
      rules::Factor whole = {slot.info->sizes[d], rules::ParallelFactor()};
      const rules::FactorList& factors = (*view.tensor)[d];
      if (!factors.empty()) {
        const rules::Factor& factor = rule.factors[factors[0]];
        whole.may_be_uneven = factor.may_be_uneven &&
                              (factor.is_grained || factor.moves() || factor.size == whole.size);
      }
      if (Extend(view.slot, d, composed.dims[d], whole)) changed = true;
    }
    if (!changed) return;
    states_.Renumber(view.slot);
    outcome_.changes.push_back({view.position, states_.Of(view.slot)});
    EnqueueUsers(view.slot);
  }

  /*! \brief Gives a dimension as many of these axes as it may take and divides into. Returns
   * whether it has more than before. */
  bool Extend(int index, size_t dim, const AxisList& axes, const rules::Factor& whole) {
    SlotState& slot = program_.slots[index];
    if (!IsOpen(slot, dim)) return false;
    AxisList& current = slot.sharding.dims[dim];
    if (mesh::NumShards(axes) <= mesh::NumShards(current)) return false;
    if (!mesh::IsPrefix(current, axes)) return false;
    AxisList used = slot.withheld;
    for (size_t other = 0; other < slot.sharding.dims.size(); ++other) {
      if (other != dim)
        used.insert(used.end(), slot.sharding.dims[other].begin(), slot.sharding.dims[other].end());
    }
    AxisList extended = rules::FittingPrefix(mesh::PrefixDisjointFrom(axes, used), whole);
    if (mesh::NumShards(extended) <= mesh::NumShards(current)) return false;
    Note(index);
    current = std::move(extended);
    return true;
  }

  /*! \brief Keeps the sharding of a slot that is going to change, while changes may be undone. */
  void Note(int slot) {
    if (journal_ != nullptr) journal_->emplace_back(slot, program_.slots[slot].sharding);
  }

  Program& program_;
  const LinksOfSlots& users_;
  const dialect::MeshTable& meshes_;
  planning::Planner& planner_;
  std::vector<bool> queued_;
  std::vector<bool> waits_;  // for the next stage, as of the link's last visit
  SlotStates states_;
  KnownVisits known_visits_;
  VisitOutcome outcome_;  // of the visit that is worked out
  std::deque<int> pass_through_, others_;
  std::vector<View> views_;  // of the link being visited
  Merged merged_;            // of the link being visited
  std::vector<FactorShardings> spare_;
  LinkCost link_cost_;
  Journal* journal_ = nullptr;  // of changes that may be undone
  int priority_ = 0;            // up to which what is stated counts
};

}  // namespace

void Solve(Program* program, const dialect::MeshTable& meshes, planning::Planner* planner) {
  LinksOfSlots users(*program);
  SolveMeshes(program, users, meshes);
  AxisSolver(program, users, meshes, planner).Run();
}

}  // namespace distir::propagation
