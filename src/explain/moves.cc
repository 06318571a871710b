// Lists the moves of a function: the collectives between a computed tensor and its readers.
#include "explain/moves.h"

#include <unordered_set>

#include "explain/explainer.h"

namespace distir::explain {

namespace {

class Moves {
 public:
  Moves(Program* program, const FunctionView& view) : program_(*program), view_(view) {}

  std::vector<MovedTensor> Run() {
    std::vector<MovedTensor> moves;
    for (const Bound& bound : view_.bound) {
      if (IsStep(bound) && IsEnd(bound.var)) moves.push_back(MoveTo(bound.var));
    }
    return moves;
  }

 private:
  /*! \brief True if a binding moves what another one on the same devices gives. */
  static bool IsStep(const Bound& bound) {
    return bound.move && bound.move->source.defined() &&
           bound.move->collective != abi::Collective::kSend;
  }

  bool IsStated(const ir::Expr& var) const {
    for (int slot : view_.SlotsOf(var)) {
      if (view_.facts[slot].is_stated) return true;
    }
    return false;
  }

  /*! \brief True if the variable is stated, or a reader is not the next move. */
  bool IsEnd(const ir::Var& var) const {
    auto users = view_.users.find(var.get());
    if (users == view_.users.end() || IsStated(var)) return true;
    for (int user : users->second) {
      if (!IsStep(view_.bound[user])) return true;
    }
    return false;
  }

  MovedTensor MoveTo(const ir::Var& end) {
    MovedTensor move;
    move.end = end;
    move.is_stated = IsStated(end) || !program_.IsPropagated();
    ir::Expr at = end;
    std::vector<ir::Expr> steps;
    while (true) {
      const Bound* bound = view_.Find(at);
      if (bound == nullptr || !IsStep(*bound)) break;
      if (!at.same_as(end) && IsStated(at)) break;
      steps.push_back(at);
      at = bound->move->source;
    }
    move.origin = ir::Var::Cast(at);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      if (counted_.insert(step->get()).second)
        move.variables.push_back(ir::Var::Cast(*step).name());
    }
    move.maker = OperatorOf(view_.Find(at));
    AddReaders(end, &move);
    ReadShardings(&move);
    return move;
  }

  void AddReaders(const ir::Var& end, MovedTensor* move) const {
    auto users = view_.users.find(end.get());
    if (users == view_.users.end()) return;
    for (int user : users->second) {
      const Bound& bound = view_.bound[user];
      if (!IsStep(bound)) move->readers.push_back({bound.var.name(), OperatorOf(&bound)});
    }
  }

  std::string OperatorOf(const Bound* bound) const {
    if (bound == nullptr) return "";
    auto node = view_.graph.node_of_call.find(bound->value.get());
    if (node != view_.graph.node_of_call.end()) return view_.graph.nodes[node->second].name;
    auto call = ir::Call::Cast(bound->value);
    auto callee = call.defined() ? ir::GlobalVar::Cast(call.op()) : ir::GlobalVar();
    return callee.defined() ? static_cast<std::string>(callee.name()) : "";
  }

  void ReadShardings(MovedTensor* move) {
    const SlotList& from = view_.SlotsOf(move->origin);
    const SlotList& to = view_.SlotsOf(move->end);
    if (from.size() != 1 || to.size() != 1) return;
    const Fact& source = view_.facts[from[0]];
    const Fact& target = view_.facts[to[0]];
    if (source.root < 0 || target.root < 0) return;
    move->source = program_.TextAmongMeshes(source.root, source.sharding);
    move->target = program_.TextAmongMeshes(target.root, target.sharding);
    move->is_partial = !source.sharding.partial.empty();
    move->disagrees =
        source.root != target.root || Disagrees(&program_, view_, from[0], target.sharding);
  }

  Program& program_;
  const FunctionView& view_;
  std::unordered_set<const ffi::Object*> counted_;
};

}  // namespace

std::vector<MovedTensor> ListMoves(Program* program, const FunctionView& view) {
  return Moves(program, view).Run();
}

MoveCause CauseOf(Program* program, const FunctionView& view, const MovedTensor& move) {
  const SlotList& from = view.SlotsOf(move.origin);
  const SlotList& to = view.SlotsOf(move.end);
  if (from.size() != 1 || to.size() != 1) return {};
  return {Explainer(program, view, move.origin).ShardingUnlike(view.facts[to[0]].sharding),
          Explainer(program, view, move.end).ShardingUnlike(view.facts[from[0]].sharding),
          ExplainMove(program, view, move.origin, move.end)};
}

}  // namespace distir::explain
