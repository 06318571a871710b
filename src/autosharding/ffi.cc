// Automatic sharding of a program as a global function: module in, annotations and report out.
#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autoshard/callback.h"
#include "autoshard/solver.h"
#include "autosharding/model.h"
#include "autosharding/statements.h"
#include "dialect/mesh_table.h"
#include "ir/module/call_graph.h"
#include "ir/rewriter.h"
#include "propagation/graph.h"
#include "propagation/merged_dims.h"
#include "propagation/pass.h"
#include "rules/tir/rule.h"
#include "support/error.h"
#include "support/functions.h"

namespace distir::autosharding {

namespace {

using Data = ffi::Map<ffi::String, ffi::Any>;
using propagation::FunctionGraph;

/*! \brief A number of plain data, whole or not. */
double NumberOf(const ffi::Any& value) {
  if (auto whole = value.as<int64_t>(); whole.has_value()) return static_cast<double>(*whole);
  return value.cast<double>();
}

DeviceLimits LimitsOf(const Data& device) {
  DeviceLimits limits;
  limits.launch = NumberOf(device.at("launch"));
  limits.bandwidth = NumberOf(device.at("bandwidth"));
  for (const auto& pair : device.at("caches").cast<ffi::Array<ffi::Array<ffi::Any>>>())
    limits.caches[NumberOf(pair[0])] = NumberOf(pair[1]);
  limits.speed = {NumberOf(device.at("operations")), limits.bandwidth};
  return limits;
}

std::unordered_map<std::string, Work> CountsOf(
    const ffi::Map<ffi::String, ffi::Array<ffi::Any>>& rows) {
  std::unordered_map<std::string, Work> counts;
  for (const auto& [name, row] : rows) {
    counts[name] = {NumberOf(row[0]), NumberOf(row[1]), NumberOf(row[2]),
                    static_cast<int>(row[3].cast<int64_t>()), false};
  }
  return counts;
}

/*! \brief A module and the graphs of the functions that one of its functions reaches. */
class Graphs {
 public:
  Graphs(const ir::IRModule& mod, const ir::GlobalVar& main)
      : mod_(mod), calls_(mod), meshes_(mod), kernels_(mod.functions()) {
    Add(main);
  }

  const FunctionGraph& Of(const ir::GlobalVar& function) const {
    return *graphs_.at(function.get());
  }
  /*! \brief The one of the function that was given is the first. */
  const std::vector<FunctionGraph*>& all() const { return all_; }
  dialect::MeshTable& meshes() { return meshes_; }

 private:
  void Add(const ir::GlobalVar& name) {
    if (graphs_.count(name.get()) > 0) return;
    auto function = ir::Function::Cast(mod_.functions().at(name));
    graphs_[name.get()] = std::make_unique<FunctionGraph>(propagation::BuildGraph(
        name.name(), function, &meshes_, &kernels_,
        [this](const ir::GlobalVar& callee) { return calls_.Find(callee).has_value(); }, false));
    FunctionGraph* graph = graphs_[name.get()].get();
    all_.push_back(graph);
    for (const propagation::CallSite& site : graph->calls) Add(site.callee);
  }

  const ir::IRModule mod_;
  const ir::CallGraph calls_;
  dialect::MeshTable meshes_;
  rules::KernelTable kernels_;
  std::unordered_map<const ffi::Object*, std::unique_ptr<FunctionGraph>> graphs_;
  std::vector<FunctionGraph*> all_;
};

/*! \brief A sharding as a list of axis numbers per dimension. */
ffi::Array<ffi::Any> ToData(const mesh::Mesh& mesh, const mesh::Sharding& sharding) {
  const auto axes = propagation::WholeAxes(mesh, sharding);
  TVM_FFI_ICHECK(axes.has_value()) << "a chosen sharding has parts of axes";
  ffi::Array<ffi::Any> dims;
  for (const std::vector<int>& dim : *axes) dims.push_back(ffi::Array<int>(dim.begin(), dim.end()));
  return dims;
}

ffi::Array<ffi::Any> RowOf(const std::string& function, const Place& place,
                           const ffi::Array<ffi::Any>& dims) {
  return {ffi::String(function), place.is_param, ffi::String(place.name),
          ffi::Array<int64_t>(place.path.begin(), place.path.end()), dims};
}

/*!
 * \brief Chooses shardings of a function and of those that it calls.
 *
 * \param outlined, counts See autosharding/work.h.
 * \param device Its launch, bandwidth, caches and operations per second.
 * \param memory_limit Bytes of a device; negative: no limit.
 * \param stop Called with the best cost (kInfinite if there is none) and the bound.
 * \return Cost and bound, the axes that serve for anything, the least memory; if there is a choice,
 * statements, calls and memory.
 */
Data Choose(ir::IRModule mod, ir::GlobalVar main, ir::DeviceMesh device_mesh, ffi::Any cluster,
            ir::IRModule outlined, ffi::Map<ffi::String, ffi::Array<ffi::Any>> counts, Data device,
            int64_t memory_limit, int64_t rounds, double gap, ffi::Function stop) {
  Graphs graphs(mod, main);
  dialect::MeshTable& meshes = graphs.meshes();
  const int root = meshes.RootOf(device_mesh);
  const mesh::Mesh mesh = meshes.Root(root);
  DISTIR_REQUIRE(dialect::ToMesh(device_mesh) == mesh, ValueError)
      << "the module has the devices of the mesh in another shape; name that one";
  planning::Planner planner(cost::ToCluster(cluster));
  const DeviceLimits limits = LimitsOf(device);
  Moves moves(&planner, mesh, limits);
  const Works works(mod, outlined, CountsOf(counts), limits);
  const auto graph_of = [&](const ir::GlobalVar& name) -> const FunctionGraph& {
    return graphs.Of(name);
  };
  const Model model(*graphs.all().front(), graph_of, works, limits, &moves, root,
                    memory_limit < 0 ? std::nullopt : std::optional<int64_t>(memory_limit));
  const autoshard::Solution solution = autoshard::Solve(
      model.problem(), static_cast<int32_t>(rounds), gap,
      [&stop](const autoshard::Solution& best) { return autoshard::Ends(stop, best); });
  Data data;
  data.Set("cost", solution.cost);
  data.Set("bound", solution.bound);
  ffi::Array<bool> usable;
  for (bool each : model.UsableAxes()) usable.push_back(each);
  data.Set("usable", usable);
  const Model::LeastMemory least = model.LeastPossible();
  data.Set("least_memory", least.bytes);
  if (least.graph != nullptr) {
    const propagation::Node& node = least.graph->nodes[least.node];
    const int slot = node.results.empty() ? node.operands[0] : node.results[0];
    data.Set("least_at", least.graph->slots[slot].name);
  }
  if (solution.choice.empty() && !model.problem().nodes.empty()) return data;

  const auto chosen = [&](const FunctionGraph& graph, int slot) {
    return model.ShardingOf(graph, slot, solution.choice);
  };
  ffi::Array<ffi::Any> calls, tensors, statements;
  for (const FunctionGraph* graph : model.graphs()) {
    for (const Place& place : PlacesOf(*graph)) {
      if (!place.is_param) break;
      if (const auto sharding = chosen(*graph, place.slot); sharding.has_value())
        tensors.push_back(RowOf(graph->name, place, ToData(mesh, *sharding)));
    }
    const std::set<int> params(graph->params.begin(), graph->params.end());
    const auto is_param = [&params](int slot) { return params.count(slot) > 0; };
    for (size_t i = 0; i < graph->nodes.size(); ++i) {
      const propagation::Node& node = graph->nodes[i];
      if (std::none_of(node.operands.begin(), node.operands.end(), is_param)) continue;
      const Way& way = model.WayOf(*graph, i, solution.choice);
      const auto names = [&](const propagation::SlotList& slots) {
        ffi::Array<ffi::Any> found;
        for (int slot : slots) found.push_back(graph->slots[slot].name);
        return found;
      };
      ffi::Array<ffi::Any> operands, results;
      for (const mesh::Sharding& each : way.operands) operands.push_back(ToData(mesh, each));
      for (const mesh::Sharding& each : way.results) results.push_back(ToData(mesh, each));
      ffi::Array<int> partial;
      if (!way.results.empty()) {
        for (const mesh::AxisRef& axis : way.results[0].partial) partial.push_back(axis.axis);
      }
      calls.push_back(ffi::Array<ffi::Any>{ffi::String(graph->name), node.name,
                                           names(node.operands), names(node.results), operands,
                                           results, partial});
    }
  }
  for (const Statement& each :
       FindStatements(graphs.all(), graph_of, chosen, meshes, root, &planner))
    statements.push_back(RowOf(each.graph->name, each.place, ToData(mesh, each.sharding)));
  data.Set("statements", statements);
  data.Set("tensors", tensors);
  data.Set("calls", calls);
  return data;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.autosharding.Choose", Choose)
      .def("distir.autosharding.SeparateBatchDims", [](ir::IRModule mod) {
        return ir::RewriteFunctions(mod, propagation::SeparateBatchDims);
      });
}

}  // namespace distir::autosharding
