// Explains one redistribution: the two sides, their costs, and annotations that avoid it.
#include "explain/conflict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "explain/chain.h"
#include "rules/call/projection.h"
#include "rules/call/ways.h"

namespace distir::explain {

namespace {

using propagation::Node;

constexpr const char* kUnknownSize = "its size depends on the data";

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i];
  }
  return text;
}

mesh::Sharding WithoutPartial(mesh::Sharding sharding) {
  sharding.partial.clear();
  sharding.reduction = mesh::Reduction::kNone;
  return sharding;
}

/*! \brief A call that reads what was moved. */
struct Reader {
  const Node* node;
  const Bound* bound;
  size_t operand;
};

/*! \brief Cost and moves of one way to compute a call. */
struct Way {
  double bytes = 0;
  double seconds = 0;
  std::vector<std::string> moved;        // what moves, as text
  std::vector<mesh::Sharding> operands;  // what the call takes
  std::vector<mesh::Sharding> results;   // what it gives
};

class Conflict {
 public:
  Conflict(Program* program, const FunctionView& view, const ir::Expr& origin, const ir::Var& moved)
      : program_(*program),
        view_(view),
        origin_(origin),
        slot_(view.SlotsOf(origin)[0]),
        moved_slot_(view.SlotsOf(moved)[0]),
        have_(view.facts[slot_].sharding),
        layout_(WithoutPartial(have_)),
        want_(view.facts[moved_slot_].sharding),
        root_(view.facts[slot_].root),
        moved_(moved),
        read_(AsRead()),
        read_slot_(view.SlotsOf(read_)[0]) {}

  MoveExplanation Run() {
    const mesh::Sharding target = WithoutPartial(want_);
    const bool was_partial = !have_.partial.empty();
    const planning::Plan* plan = program_.PlanOf(view_, slot_, have_, target);
    // Reductions, and slices of replicated values, are no disagreement.
    const bool disagrees = plan != nullptr && Disagrees(&program_, view_, slot_, want_);
    const std::string view = program_.ViewText(moved_.ty());
    std::string verb = " is redistributed from ";
    if (was_partial)
      verb = disagrees ? " is reduced and redistributed from " : " is reduced, from ";
    lines_.push_back(Quoted(NameOf(origin_)) + verb + program_.Text(root_, have_) + " to " +
                     program_.TextAmongMeshes(root_, target) +
                     (view.empty() ? "" : " (placement " + view + ")") + ReadersText() + ": " +
                     (plan == nullptr ? kUnknownSize : CostText(plan->received, plan->seconds)));
    if (!disagrees) return {lines_, {}};
    for (const mesh::Sharding* side : {&layout_, &want_}) AddUneven(*side);
    if (std::optional<Reader> reader = FirstReader()) {
      CompareWays(*reader);
      Advise(*reader);
    }
    return {lines_, advice_};
  }

 private:
  // ---- what does not divide

  /*! \brief Says of each dimension that its shards do not divide, what its extent is and could be.
   */
  void AddUneven(const mesh::Sharding& sharding) {
    const rules::Sizes& sizes = view_.graph.slots[slot_].sizes;
    if (view_.is_local) return;
    for (size_t d = 0; d < sharding.dims.size() && d < sizes.size(); ++d) {
      const int64_t shards = mesh::NumShards(sharding.dims[d]);
      if (sizes[d] < 0 || sizes[d] % shards == 0) continue;
      const int64_t least = sizes[d] / shards * shards;
      const std::string near =
          (least > 0 ? std::to_string(least) + " or " : "") + std::to_string(least + shards);
      std::string line = "  dimension " + std::to_string(d) + " of " + Quoted(NameOf(origin_)) +
                         " has " + std::to_string(sizes[d]) + " elements, which the " +
                         std::to_string(shards) + " shards over " +
                         mesh::ToString(sharding.dims[d], program_.Root(root_)) +
                         " do not divide; " + near + " would";
      if (lines_.back() != line) lines_.push_back(std::move(line));
    }
  }

  // ---- who asks

  /*! \brief The moved value as it is read: cut to its true extents where it moves with padding. */
  ir::Var AsRead() const {
    const auto users = view_.users.find(moved_.get());
    const auto made = view_.made.find(moved_.name());
    if (users == view_.users.end() || users->second.size() != 1 || made == view_.made.end())
      return moved_;
    const ir::Var& reader = view_.bound[users->second[0]].var;
    return reader.name() == made->second.variable ? reader : moved_;
  }

  std::string ReadersText() const {
    std::vector<std::string> names;
    auto users = view_.users.find(read_.get());
    if (users != view_.users.end()) {
      for (int user : users->second) names.push_back(Quoted(view_.bound[user].var.name()));
    }
    if (names.empty()) return " for what " + Quoted(view_.name) + " returns";
    if (names.size() > kMostReaders) {
      const std::string rest = std::to_string(names.size() - kMostReaders) + " more";
      names.resize(kMostReaders);
      names.push_back(rest);
    }
    return " for " + Joined(names);
  }

  std::optional<Reader> FirstReader() const {
    auto users = view_.users.find(read_.get());
    if (users == view_.users.end()) return std::nullopt;
    for (int user : users->second) {
      const Bound& bound = view_.bound[user];
      auto node = view_.graph.node_of_call.find(bound.value.get());
      if (bound.move || node == view_.graph.node_of_call.end()) continue;
      const Node& reads = view_.graph.nodes[node->second];
      for (size_t i = 0; i < reads.operands.size(); ++i) {
        if (reads.operands[i] == read_slot_) return Reader{&reads, &bound, i};
      }
    }
    return std::nullopt;
  }

  // ---- what each side costs

  /*! \brief Slot of a reader's operand before it was moved for the reader. */
  int SlotBefore(const Node& node, size_t operand) const {
    const int slot = node.operands[operand];
    if (slot == read_slot_) return slot_;
    auto source = source_of_.find(slot);
    return source == source_of_.end() ? slot : source->second;
  }

  void ReadSources() {
    for (const Bound& each : view_.bound) {
      if (!each.move || !each.move->source.defined()) continue;
      const SlotList from = view_.SlotsOf(view_.OriginOf(each.var)), to = view_.SlotsOf(each.var);
      if (from.size() == 1 && to.size() == 1) source_of_[to[0]] = from[0];
      if (from.size() == 1 && to.size() == 1) moved_from_[from[0]].push_back(to[0]);
    }
  }

  /*! \brief Sharding that the reader's result has in the end. */
  const mesh::Sharding& Wanted(int slot) const {
    auto moved = moved_from_.find(slot);
    const bool is_moved_once = moved != moved_from_.end() && moved->second.size() == 1;
    return view_.facts[is_moved_once ? moved->second[0] : slot].sharding;
  }

  void Add(int slot, const std::string& name, const mesh::Sharding& from, const mesh::Sharding& to,
           Way* way) {
    if (view_.facts[slot].root != root_) return;
    const mesh::Sharding target = WithoutPartial(to);
    const bool stays = mesh::SameLayout(program_.Root(root_), WithoutPartial(from), target);
    if (stays && from.partial.empty()) return;
    const planning::Plan* plan = program_.PlanOf(view_, slot, from, target);
    if (plan == nullptr) return way->moved.push_back(name + " (" + kUnknownSize + ")");
    way->bytes += plan->received;
    way->seconds += plan->seconds;
    if (plan->received > 0) way->moved.push_back(name + (stays ? " (reduced)" : ""));
  }

  Way Cost(const Reader& reader, const rules::FactorShardings& factors) {
    const Node& node = *reader.node;
    Way way;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      way.operands.push_back(
          rules::Compose(*node.rule, rules::Side::kOperand, node.rule->operands[i], factors));
      const int slot = SlotBefore(node, i);
      const propagation::SlotInfo& info = view_.graph.slots[slot];
      if (info.is_constant || view_.facts[slot].root != root_) continue;
      // Of the others, what is partial is reduced in any case.
      const mesh::Sharding from =
          slot == slot_ ? have_ : WithoutPartial(view_.facts[slot].sharding);
      Add(slot, Quoted(info.name), from, way.operands.back(), &way);
    }
    for (size_t i = 0; i < node.results.size(); ++i) {
      mesh::Sharding from =
          rules::Compose(*node.rule, rules::Side::kResult, node.rule->results[i], factors);
      way.results.push_back(from);
      for (size_t f = 0; f < factors.size(); ++f) {
        const bool is_reduced =
            node.rule->factors[f].Is<rules::ReductionFactor>() && node.rule->IsCombined(f);
        if (factors[f].empty() || !is_reduced) continue;
        from.reduction = node.rule->factors[f].reduction();
        from.partial.insert(from.partial.end(), factors[f].begin(), factors[f].end());
      }
      Add(node.results[i], "the result", from, Wanted(node.results[i]), &way);
    }
    return way;
  }

  rules::FactorShardings FactorsAsComputed(const Node& node) const {
    rules::FactorShardings factors(node.rule->factors.size());
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Fact& fact = view_.facts[node.operands[i]];
      if (fact.root == root_)
        rules::Project(*node.rule, node.rule->operands[i], fact.sharding, &factors);
    }
    return factors;
  }

  /*! \brief The factors when the origin stays as it is, and what fits beside it; nullopt where the
   * operator cannot be computed so. */
  std::optional<rules::FactorShardings> FactorsWithOrigin(const Reader& reader,
                                                          const rules::FactorShardings& now) const {
    const rules::FactorRule& rule = *reader.node->rule;
    rules::FactorShardings own(rule.factors.size());
    rules::Project(rule, rule.operands[reader.operand], layout_, &own);
    std::vector<rules::FactorChoice> choices;
    for (const rules::FactorShardings* each :
         std::initializer_list<const rules::FactorShardings*>{&own, &now}) {
      for (size_t f = 0; f < rule.factors.size(); ++f) {
        if (rule.factors[f].Is<rules::ReplicatedFactor>() || (*each)[f].empty()) continue;
        const bool is_chosen = std::any_of(choices.begin(), choices.end(),
                                           [f](const auto& known) { return known.factor == f; });
        if (!is_chosen) choices.push_back({f, (*each)[f], 0});
      }
    }
    rules::FactorShardings factors = rules::Assign(rule, choices);
    rules::DropUnnestable(rule, &factors);
    const mesh::Sharding kept =
        rules::Compose(rule, rules::Side::kOperand, rule.operands[reader.operand], factors);
    if (!mesh::SameLayout(program_.Root(root_), kept, layout_)) return std::nullopt;
    return factors;
  }

  void CompareWays(const Reader& reader) {
    ReadSources();
    const std::string call =
        Quoted(reader.bound->var.name()) + " (" + static_cast<std::string>(reader.node->name) + ")";
    const rules::FactorShardings now = FactorsAsComputed(*reader.node);
    const Way chosen = Cost(reader, now);
    lines_.push_back("  " + call + " as it is computed: " + WayText(chosen));
    std::optional<rules::FactorShardings> other = FactorsWithOrigin(reader, now);
    if (!other) {
      lines_.push_back("  " + call + " cannot be computed with " + Quoted(NameOf(origin_)) +
                       " as it is: it needs all of a dimension that is sharded");
      return;
    }
    other_ = Cost(reader, *other);
    lines_.push_back("  " + call + " with " + Quoted(NameOf(origin_)) +
                     " as it is: " + WayText(*other_));
  }

  static std::string WayText(const Way& way) {
    const std::string cost = CostText(way.bytes, way.seconds);
    if (way.moved.empty()) return cost;
    return cost + ": " + Joined(way.moved) + (way.moved.size() == 1 ? " moves" : " move");
  }

  // ---- what would avoid it

  void Advise(const Reader& reader) {
    reader_ = reader.node;
    AddAdvice(slot_, have_, want_);
    const size_t num_own = advice_.size();
    is_complete_ = true;
    if (other_) {
      for (size_t i = 0; i < reader.node->operands.size(); ++i) {
        const int slot = SlotBefore(*reader.node, i);
        const Fact& fact = view_.facts[slot];
        if (slot == slot_ || fact.root != root_ || fact.sharding.IsReplicated()) continue;
        if (mesh::SameLayout(program_.Root(root_), fact.sharding, other_->operands[i])) continue;
        AddAdvice(slot, fact.sharding, other_->operands[i]);
      }
      for (size_t i = 0; i < reader.node->results.size(); ++i) {
        const int slot = reader.node->results[i];
        if (view_.facts[slot].root == root_)
          AddAdvice(slot, WithoutPartial(view_.facts[slot].sharding), other_->results[i]);
      }
    }
    // All that the other way takes has to be stated, or something still moves.
    const size_t num_offered = is_complete_ ? advice_.size() : num_own;
    std::string ways;
    for (size_t i = 0; i < num_offered; ++i) {
      const Advice& each = advice_[i];
      if (!each.is_complete) continue;
      if (!ways.empty()) ways += i > num_own ? " and " : ", or ";
      ways += Quoted(each.variable);
      if (each.function != view_.name) ways += " in " + Quoted(each.function);
      ways += " as " + each.dims + prices_[i];
    }
    if (!ways.empty()) lines_.push_back("  to avoid it, state " + ways);
  }

  /*! \brief Says what stating a tensor otherwise moves for calls that read it as it is. */
  std::string PriceText(int slot, const mesh::Sharding& stated, const std::set<int>& passed) const {
    std::vector<std::string> names;
    const mesh::Sharding have = WithoutPartial(view_.facts[slot].sharding);
    for (int index : view_.nodes_of_slot[slot]) {
      const Node& node = view_.graph.nodes[index];
      const bool reads =
          std::find(node.operands.begin(), node.operands.end(), slot) != node.operands.end();
      const bool is_passed =
          &node == reader_ ||
          std::any_of(node.results.begin(), node.results.end(),
                      [&passed](int result) { return passed.count(result) > 0; });
      const bool is_moved = static_cast<std::string>(node.name) == "relax.dist.redistribute";
      if (reads && !is_passed && !is_moved && !node.results.empty())
        names.push_back(Quoted(view_.graph.slots[node.results[0]].name));
    }
    const planning::Plan* plan =
        names.empty() ? nullptr : program_.PlanOf(view_, slot, WithoutPartial(stated), have);
    if (plan == nullptr || plan->received == 0) return "";
    return " (then it is moved for " + Joined(names) + ", " +
           CostText(plan->received, plan->seconds) + ")";
  }

  /*! \brief Says how what a tensor's sharding follows from would have to be stated instead. */
  void AddAdvice(int slot, const mesh::Sharding& have, const mesh::Sharding& want) {
    if (!AddFirstAdvice(slot, have, want)) is_complete_ = false;
  }
  bool AddFirstAdvice(int slot, const mesh::Sharding& have, const mesh::Sharding& want) {
    for (size_t d = 0; d < have.dims.size(); ++d) {
      if (have.dims[d] == want.dims[d]) continue;
      for (const mesh::AxisRef& axis : have.dims[d]) {
        auto hops = FindChain(&program_, {&view_, slot, static_cast<int>(d)}, axis);
        if (!hops) continue;
        const int dim = static_cast<int>(d);
        const Place at = hops->empty() ? Place{&view_, slot, dim} : hops->back().to;
        auto carried = Carry(WithoutPartial(want), *hops);
        const bool is_complete = carried.has_value();
        std::set<int> passed = {moved_slot_, slot};
        for (const Hop& hop : *hops) {
          if (hop.to.view == &view_) passed.insert(hop.to.slot);
        }
        if (!carried) carried = WithDim(at, want.dims[d]);
        if (!carried) continue;
        Advice advice = {at.view->name, at.view->graph.slots[at.slot].name,
                         program_.Text(root_, *carried), is_complete};
        if (advised_.insert({advice.function, advice.variable, advice.dims}).second) {
          advice_.push_back(std::move(advice));
          prices_.push_back(at.view == &view_ ? PriceText(at.slot, *carried, passed) : "");
        }
        return is_complete;
      }
    }
    return false;
  }

  /*! \brief The sharding of a tensor, but for one dimension; nullopt where others have its axes. */
  static std::optional<mesh::Sharding> WithDim(const Place& at, const mesh::AxisList& axes) {
    mesh::Sharding changed = WithoutPartial(at.view->facts[at.slot].sharding);
    changed.dims[at.dim].clear();
    for (const mesh::AxisList& others : changed.dims) {
      if (mesh::Overlaps(axes, others)) return std::nullopt;
    }
    changed.dims[at.dim] = axes;
    return changed;
  }

  static constexpr size_t kMostReaders = 3;

  Program& program_;
  const FunctionView& view_;
  const ir::Expr origin_;
  const int slot_, moved_slot_;
  const mesh::Sharding have_, layout_, want_;
  const int root_;
  const ir::Var moved_, read_;
  const int read_slot_;
  std::optional<Way> other_;
  std::map<int, int> source_of_;                // slots, by what moves make of them
  std::map<int, std::vector<int>> moved_from_;  // the other way
  std::set<std::tuple<std::string, std::string, std::string>> advised_;
  std::vector<Advice> advice_;
  std::vector<std::string> prices_;  // of each advice, for other readers
  const Node* reader_ = nullptr;     // that is advised on
  bool is_complete_ = true;          // all that the other way takes can be stated
  std::vector<std::string> lines_;
};

std::string WithSeparators(double number) {
  std::string digits = std::to_string(static_cast<int64_t>(std::ceil(number)));
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

}  // namespace

std::string CostText(double bytes, double seconds) {
  if (bytes == 0) return "nothing is sent";
  char time[32];
  std::snprintf(time, sizeof(time), "%.3g us", seconds * 1e6);
  return WithSeparators(bytes) + " bytes per device, " + time + " by the cost model";
}

bool Disagrees(Program* program, const FunctionView& view, int slot, const mesh::Sharding& want) {
  const mesh::Sharding layout = WithoutPartial(view.facts[slot].sharding);
  const planning::Plan* plan = program->PlanOf(view, slot, layout, WithoutPartial(want));
  return plan == nullptr || plan->received > 0;
}

MoveExplanation ExplainMove(Program* program, const FunctionView& view, const ir::Expr& origin,
                            const ir::Var& moved) {
  const SlotList& from = view.SlotsOf(origin);
  const SlotList& to = view.SlotsOf(moved);
  if (from.size() != 1 || to.size() != 1) return {};
  const int root = view.facts[from[0]].root;
  if (root < 0) return {};
  if (view.facts[to[0]].root != root) {
    const Fact& there = view.facts[to[0]];
    if (there.root < 0) return {};
    return {{Quoted(NameOf(origin)) + " moves from " +
             program->TextAmongMeshes(root, view.facts[from[0]].sharding) + " to " +
             program->TextAmongMeshes(there.root, there.sharding)},
            {}};
  }
  return Conflict(program, view, origin, moved).Run();
}

}  // namespace distir::explain
