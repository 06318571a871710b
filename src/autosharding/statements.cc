// Finds a small set of annotations from which propagation derives a chosen plan.
#include "autosharding/statements.h"

#include <algorithm>
#include <cstddef>
#include <map>
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

/*! \brief Paths to the tensors of a type, in the order of slots. */
void CollectPaths(const ir::Type& type, std::vector<int64_t> path,
                  std::vector<std::vector<int64_t>>* paths) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    for (size_t i = 0; i < tuple.fields().size(); ++i) {
      std::vector<int64_t> inner = path;
      inner.push_back(static_cast<int64_t>(i));
      CollectPaths(tuple.fields()[i], inner, paths);
    }
  } else if (ir::TensorType::Is(type) || ir::DTensorType::Is(type)) {
    paths->push_back(std::move(path));
  }
}

}  // namespace

std::vector<Place> PlacesOf(const FunctionGraph& graph) {
  std::vector<Place> places;
  std::set<int> seen;
  const auto add = [&](const ir::Var& var, bool is_param) {
    auto found = graph.var_slots.find(var.get());
    if (found == graph.var_slots.end()) return;
    std::vector<std::vector<int64_t>> paths;
    CollectPaths(var.ty(), {}, &paths);
    for (size_t i = 0; i < std::min(paths.size(), found->second.size()); ++i) {
      const int slot = found->second[i];
      if (!graph.slots[slot].is_constant && seen.insert(slot).second)
        places.push_back({slot, var.name(), paths[i], is_param});
    }
  };
  for (const ir::Var& param : graph.function.params()) add(param, true);
  ir::VisitBindings(graph.function.body(),
                    [&](const ir::Binding& binding) { add(binding.var(), false); });
  return places;
}

std::vector<Statement> FindStatements(
    const std::vector<FunctionGraph*>& graphs, const GraphOf& graph_of,
    const std::function<std::optional<Sharding>(const FunctionGraph&, int)>& chosen,
    const dialect::MeshTable& meshes, int root, planning::Planner* planner) {
  std::vector<Statement> statements;
  std::vector<size_t> num_sources;
  for (const FunctionGraph* graph : graphs) num_sources.push_back(graph->sources.size());
  std::map<const FunctionGraph*, std::vector<Place>> places;
  std::set<std::pair<const FunctionGraph*, int>> stated;
  const auto state = [&](FunctionGraph* graph, const Place& place, const Sharding& sharding) {
    if (!stated.emplace(graph, place.slot).second) return;
    statements.push_back({graph, place, sharding});
    propagation::Source source;
    source.slot = place.slot;
    source.root = root;
    source.sharding = sharding;
    graph->sources.push_back(std::move(source));
  };
  for (FunctionGraph* graph : graphs) {
    places[graph] = PlacesOf(*graph);
    for (const propagation::Source& source : graph->sources) stated.emplace(graph, source.slot);
    if (graph != graphs.front()) continue;  // parameters of others have what callers give them
    for (const Place& place : places[graph]) {
      if (!place.is_param) break;
      if (const auto sharding = chosen(*graph, place.slot); sharding.has_value())
        state(graph, place, *sharding);
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
      for (const Place& place : places[*graph]) {
        const int slot = place.slot;
        const auto wanted = chosen(**graph, slot);
        if (!wanted.has_value() || stated.count({*graph, slot}) > 0) continue;
        const Sharding& solved = program.slots[instance.Slot(slot)].sharding;
        if (solved.dims == wanted->dims) continue;
        differs = true;
        if (makers[slot] < 0) continue;
        const rules::FactorRule* rule = (*graph)->nodes[makers[slot]].rule;
        if (first == nullptr) first = rule;
        if (rule == first || round >= kRoundsOfFirst) state(*graph, place, *wanted);
      }
    }
    if (!differs) break;
  }
  for (size_t i = 0; i < graphs.size(); ++i) {
    std::vector<propagation::Source>& sources = graphs[i]->sources;
    sources.erase(sources.begin() + static_cast<std::ptrdiff_t>(num_sources[i]), sources.end());
  }
  return statements;
}

}  // namespace distir::autosharding
