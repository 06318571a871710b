// Writes the lines that explain one variable.
#include "explain/explainer.h"

#include <algorithm>
#include <utility>

#include "explain/conflict.h"

namespace distir::explain {

namespace {

// A chain longer than this is cut in the middle: nobody reads it.
constexpr size_t kMaxChain = 64;
constexpr size_t kMaxNames = 3;

/*! \brief Placement that TVM prints for the sharding of all dimensions. */
std::string PlacementText(const Fact& fact, const char* more = "") {
  return fact.placement.empty() ? "" : " (placement \"" + fact.placement + "\"" + more + ")";
}

}  // namespace

std::vector<std::string> Explainer::Run() {
  ExplainOrigin();
  const SlotList& slots = view_.SlotsOf(var_);
  for (size_t i = 0; i < slots.size(); ++i) {
    name_ = Quoted(var_.name()) + (slots.size() > 1 ? " field " + std::to_string(i) : "");
    ExplainTensor(slots[i]);
    ExplainTakenBack(view_.facts[slots[i]]);
  }
  const Bound* bound = view_.Find(var_);
  if (slots.empty() && (bound == nullptr || !bound->move)) {
    lines_.push_back(Quoted(var_.name()) + " in " + Quoted(view_.name) + ": has no tensor");
  }
  ExplainMoves();
  const bool is_known = std::all_of(slots.begin(), slots.end(),
                                    [this](int slot) { return view_.facts[slot].is_known; });
  if (view_.is_changed && bound != nullptr && is_known) {
    lines_.push_back("  other passes have changed " + Quoted(view_.name) +
                     " since LowerDistIR; this is of the variable that was named " +
                     Quoted(var_.name()) + " then");
  }
  return lines_;
}

std::vector<std::string> Explainer::ShardingUnlike(const mesh::Sharding& other) {
  const SlotList& slots = view_.SlotsOf(var_);
  if (slots.size() != 1) return {};
  name_ = Quoted(var_.name());
  const Fact& fact = view_.facts[slots[0]];
  const std::string head = name_ + " in " + Quoted(view_.name) + ": ";
  ExplainPartial(head, fact);
  for (size_t d = 0; d < fact.sharding.dims.size() && d < other.dims.size(); ++d) {
    const mesh::AxisList& axes = fact.sharding.dims[d];
    if (!axes.empty() && axes != other.dims[d]) ExplainDim(head, slots[0], static_cast<int>(d));
  }
  return lines_;
}

std::string Explainer::PlaceText(const Place& at) const {
  return Quoted(at.view->graph.slots[at.slot].name) + " in " + Quoted(at.view->name);
}

// ---- what made it

void Explainer::ExplainOrigin() {
  auto made = view_.made.find(var_.name());
  if (made != view_.made.end()) {
    lines_.push_back(Quoted(var_.name()) + " in " + Quoted(view_.name) + ": made by " +
                     made->second.pass + " to compute " + Quoted(made->second.variable) + " (" +
                     made->second.op + ")");
  }
  ExplainSteps();
  const Bound* bound = view_.Find(var_);
  if (bound == nullptr || !(bound->move || bound->other_collective)) return;
  const Move& move = bound->move ? *bound->move : *bound->other_collective;
  std::string text = Quoted(var_.name()) + " in " + Quoted(view_.name) + ": ";
  if (move.collective == abi::Collective::kRecv)
    return lines_.push_back(text + "received from other devices");
  if (!move.source.defined()) return;
  if (move.collective == abi::Collective::kSend)
    return lines_.push_back(text + "sends " + Quoted(NameOf(move.source)) + " to other devices");
  text += move.kind;
  const SlotList& from = view_.SlotsOf(move.source);
  if (move.is_reduction && from.size() == 1) {
    const Fact& source = view_.facts[from[0]];
    const mesh::AxisList& over = move.reduced.empty() ? source.sharding.partial : move.reduced;
    if (source.root >= 0 && !over.empty())
      text += " over " + mesh::ToString(over, program_.Root(source.root));
    lines_.push_back(text + " of the partial " + Quoted(NameOf(move.source)));
  } else {
    lines_.push_back(text + " of " + Quoted(NameOf(move.source)));
  }
}

void Explainer::ExplainSteps() {
  if (view_.made.empty()) return;
  std::string steps;
  const Origin* origin = nullptr;
  for (const ir::Var& var : view_.order) {
    auto made = view_.made.find(var.name());
    if (made == view_.made.end() || made->second.variable != var_.name()) continue;
    if (made->second.pass == "LowerDistIR") continue;
    steps += (steps.empty() ? "" : ", ") + Quoted(var.name());
    origin = &made->second;
  }
  if (origin == nullptr) return;
  lines_.push_back(Quoted(var_.name()) + " in " + Quoted(view_.name) + ": " + origin->op +
                   ", which " + origin->pass + " computes in steps, by way of " + steps);
}

// ---- how it is sharded

void Explainer::ExplainTensor(int slot) {
  const Fact& fact = view_.facts[slot];
  const std::string head = name_ + " in " + Quoted(view_.name) + ": ";
  if (!fact.is_known) {
    // LowerDistIR lays tensors side by side to send them together; what made these says enough.
    if (view_.made.count(var_.name()) == 0) lines_.push_back(head + UnknownText());
    return;
  }
  if (fact.root < 0) return lines_.push_back(head + "every device has all of it");
  const bool is_partial = ExplainPartial(head, fact);
  bool is_sharded = false;
  for (size_t d = 0; d < fact.sharding.dims.size(); ++d) {
    if (fact.sharding.dims[d].empty()) continue;
    is_sharded = true;
    ExplainDim(head, slot, static_cast<int>(d));
  }
  if (is_sharded || is_partial) return;
  const Bound* bound = view_.Find(var_);
  const std::string replicated = head + "replicated" + PlacementText(fact);
  if (fact.is_stated && fact.stated_shards.empty()) {
    lines_.push_back(replicated + ", as an annotation or a type states");
  } else if (bound == nullptr || !bound->move) {
    lines_.push_back(replicated + ", nothing shards it");
  } else {
    lines_.push_back(replicated);
  }
}

void Explainer::ExplainTakenBack(const Fact& fact) {
  for (const auto& [dim, shards] : fact.taken_back)
    lines_.push_back("  an annotation states " + std::to_string(shards) + " shards of dimension " +
                     std::to_string(dim) +
                     ", which is taken back: it has fewer heads than that, and devices have copies "
                     "of the heads that they use");
}

std::string Explainer::UnknownText() const {
  if (view_.variables.at(var_.name()).size() > 1)
    return "the function has several variables of this name, so what LowerDistIR noted of one "
           "may be of another";
  return "the module does not say how it is sharded; another pass has made or renamed it since "
         "LowerDistIR";
}

bool Explainer::ExplainPartial(const std::string& head, const Fact& fact) {
  if (fact.sharding.partial.empty() || fact.cause.node < 0) return false;
  const propagation::Node& node = view_.graph.nodes[fact.cause.node];
  const std::string& operand = view_.graph.slots[node.operands[fact.cause.operand]].name;
  std::string text = head + "partial " + mesh::ReductionName(fact.sharding.reduction) + " over " +
                     mesh::ToString(fact.sharding.partial, program_.Root(fact.root)) +
                     PlacementText(fact, ", which does not say so");
  if (fact.cause.dim >= 0) {
    text += ": " + static_cast<std::string>(node.name) + " combines dimension " +
            std::to_string(fact.cause.dim) + " of " + Quoted(operand) +
            ", whose shards give parts of the result";
  } else {
    text += " as " + Quoted(operand) + ", through " + static_cast<std::string>(node.name);
  }
  lines_.push_back(text);
  if (!view_.is_explicit) lines_.push_back("  LegalizeRedistribute reduces it where it is made");
  return true;
}

void Explainer::ExplainDim(const std::string& head, int slot, int dim) {
  const Fact& fact = view_.facts[slot];
  std::vector<std::pair<mesh::AxisList, std::vector<std::string>>> chains;
  for (const mesh::AxisRef& axis : fact.sharding.dims[dim]) {
    std::vector<std::string> lines = ChainOf({&view_, slot, dim}, axis);
    if (!chains.empty() && chains.back().second == lines) {
      chains.back().first.push_back(axis);
    } else {
      chains.push_back({{axis}, std::move(lines)});
    }
  }
  for (auto& [axes, lines] : chains) {
    lines_.push_back(head + "dimension " + std::to_string(dim) + " is sharded over mesh axes " +
                     mesh::ToString(axes, program_.Root(fact.root)) + PlacementText(fact));
    lines_.insert(lines_.end(), lines.begin(), lines.end());
  }
}

std::vector<std::string> Explainer::ChainOf(const Place& from, const mesh::AxisRef& axis) {
  auto hops = FindChain(&program_, from, axis);
  if (!hops) return {NoChainText()};
  std::vector<std::string> lines;
  Place at = from;
  for (const Hop& hop : *hops) {
    at = hop.to;
    lines.push_back("  from " + PlaceText(at) + " dimension " + std::to_string(at.dim) +
                    " through " + hop.through);
  }
  if (lines.size() > kMaxChain) {
    const std::string rest = std::to_string(lines.size() - kMaxChain) + " more";
    lines.erase(lines.begin() + kMaxChain / 2, lines.end() - kMaxChain / 2);
    lines.insert(lines.begin() + kMaxChain / 2, "  ... " + rest);
  }
  lines.push_back("  stated by an annotation or a type of " + PlaceText(at));
  return lines;
}

std::string Explainer::NoChainText() {
  if (!program_.IsUnchanged())
    return "  nothing that other passes have left of the module says why";
  const std::vector<std::string>& lost = program_.LostVariables();
  if (lost.empty()) return "  chosen for the calls that read it; no annotation states it";
  std::string names;
  for (size_t i = 0; i < std::min(lost.size(), kMaxNames); ++i)
    names += (i > 0 ? ", " : "") + Quoted(lost[i]);
  if (lost.size() > kMaxNames) names += " and " + std::to_string(lost.size() - kMaxNames) + " more";
  return "  chosen for the calls that read it, or by an annotation of what the module no longer "
         "has: " +
         names;
}

// ---- where it goes

void Explainer::ExplainMoves() {
  const ir::Expr origin = view_.OriginOf(var_);
  const bool is_moved = !origin.same_as(var_);
  std::vector<ir::Var> ends;
  CollectEnds(is_moved ? ir::Expr(var_) : origin, &ends);
  if (is_moved && ends.empty()) ends.push_back(var_);
  for (const ir::Var& end : ends) {
    std::vector<std::string> lines = ExplainMove(&program_, view_, origin, end).lines;
    lines_.insert(lines_.end(), lines.begin(), lines.end());
  }
}

void Explainer::CollectEnds(const ir::Expr& var, std::vector<ir::Var>* ends) const {
  auto users = view_.users.find(var.get());
  if (users == view_.users.end()) return;
  for (int user : users->second) {
    const Bound& bound = view_.bound[user];
    if (!bound.move || !bound.move->source.same_as(var)) continue;
    const size_t before = ends->size();
    CollectEnds(bound.var, ends);
    if (ends->size() == before) ends->push_back(bound.var);
  }
}

}  // namespace distir::explain
