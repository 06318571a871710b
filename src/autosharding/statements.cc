// Finds the values whose annotations make propagation choose a plan.
#include "autosharding/statements.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ir/rewriter.h"
#include "propagation/instances.h"

namespace distir::autosharding {

using mesh::Sharding;
using propagation::FunctionGraph;
using propagation::Program;

namespace {

// Rounds in which only the first values that differ are stated; then all of them are.
constexpr int kRoundsOfFirst = 8;
constexpr int kMostRounds = 12;

/*! \brief Values that can be stated: parameters, then variables in program order. */
std::vector<int> SlotsOfVariables(const FunctionGraph& graph) {
  std::vector<int> slots;
  std::set<int> seen;
  const auto add = [&](const ffi::Object* var) {
    auto found = graph.var_slots.find(var);
    if (found == graph.var_slots.end()) return;
    for (int slot : found->second) {
      if (!graph.slots[slot].is_constant && seen.insert(slot).second) slots.push_back(slot);
    }
  };
  for (const ir::Var& param : graph.function.params()) add(param.get());
  ir::VisitBindings(graph.function.body(),
                    [&](const ir::Binding& binding) { add(binding.var().get()); });
  return slots;
}

}  // namespace

std::vector<Statement> FindStatements(
    const std::vector<FunctionGraph*>& graphs,
    const std::function<const FunctionGraph&(const ir::GlobalVar&)>& graph_of,
    const std::function<std::optional<Sharding>(const FunctionGraph&, int)>& chosen,
    const dialect::MeshTable& meshes, int root, planning::Planner* planner) {
  std::vector<Statement> statements;
  std::map<const FunctionGraph*, std::vector<int>> slots;
  std::set<std::pair<const FunctionGraph*, int>> stated;
  const auto state = [&](FunctionGraph* graph, int slot, const Sharding& sharding) {
    if (!stated.emplace(graph, slot).second) return;
    statements.push_back({graph, slot, sharding});
    propagation::Source source;
    source.slot = slot;
    source.root = root;
    source.sharding = sharding;
    graph->sources.push_back(std::move(source));
  };
  for (FunctionGraph* graph : graphs) {
    slots[graph] = SlotsOfVariables(*graph);
    for (const propagation::Source& source : graph->sources) stated.emplace(graph, source.slot);
    if (graph != graphs.front()) continue;  // parameters of others have what callers give them
    for (int slot : graph->params) {
      if (const auto sharding = chosen(*graph, slot); sharding.has_value())
        state(graph, slot, *sharding);
    }
  }
  for (int round = 0; round < kMostRounds; ++round) {
    Program program = propagation::Unfold(*graphs.front(), graph_of);
    propagation::Solve(&program, meshes, planner);
    bool differs = false;
    std::set<const FunctionGraph*> seen;
    for (const propagation::Instance& instance : program.instances) {
      const auto graph = std::find(graphs.begin(), graphs.end(), instance.graph);
      if (graph == graphs.end() || !seen.insert(*graph).second) continue;
      std::vector<int> makers((*graph)->slots.size(), -1);
      for (size_t i = 0; i < (*graph)->nodes.size(); ++i) {
        for (int result : (*graph)->nodes[i].results) makers[result] = static_cast<int>(i);
      }
      const rules::FactorRule* first = nullptr;  // whose result differs
      for (int slot : slots[*graph]) {
        const auto wanted = chosen(**graph, slot);
        if (!wanted.has_value() || stated.count({*graph, slot}) > 0) continue;
        const Sharding& solved = program.slots[instance.Slot(slot)].sharding;
        if (solved.dims == wanted->dims) continue;
        differs = true;
        if (makers[slot] < 0) continue;
        const rules::FactorRule* rule = (*graph)->nodes[makers[slot]].rule;
        if (first == nullptr) first = rule;
        if (rule == first || round >= kRoundsOfFirst) state(*graph, slot, *wanted);
      }
    }
    if (!differs) break;
  }
  return statements;
}

}  // namespace distir::autosharding
