// Registers the search for a plan as a global function: takes a module, a mesh and a cluster, and
// returns a function that chooses annotations for a memory limit, with a report.
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
#include "propagation/row_numbers.h"
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

/*! \brief By function, a row for each of its kernels. */
using Counts = ffi::Map<ffi::String, ffi::Array<ffi::Array<ffi::Any>>>;

std::unordered_map<std::string, Work> CountsOf(const Counts& counted) {
  std::unordered_map<std::string, Work> counts;
  for (const auto& [name, rows] : counted) {
    Work& work = counts[name];
    if (rows.empty()) continue;
    work.kernels.clear();
    for (const ffi::Array<ffi::Any>& row : rows) {
      work.kernels.push_back({NumberOf(row[0]), NumberOf(row[1]), NumberOf(row[2]),
                              static_cast<int>(row[3].cast<int64_t>())});
    }
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

/*! \brief True if a call gives its operand in another order or shape. */
bool IsRearranged(const propagation::Node& node) {
  return node.operands.size() == 1 && node.results.size() == 1 &&
         (node.name == "relax.permute_dims" || node.name == "relax.reshape");
}

/*! \brief Chooses shardings of a function and of those that it calls, for one limit after the
 * other.
 */
class Search {
 public:
  /*!
   * \param outlined, counts See autosharding/work.h.
   * \param device Its launch, bandwidth, caches and operations per second.
   */
  Search(const ir::IRModule& mod, const ir::GlobalVar& main, const ir::DeviceMesh& device_mesh,
         const ffi::Any& cluster, const ir::IRModule& outlined, const Counts& counts,
         const Data& device)
      : graphs_(mod, main),
        root_(graphs_.meshes().RootOf(device_mesh)),
        mesh_(graphs_.meshes().Root(root_)),
        planner_(cost::ToCluster(cluster)),
        limits_(LimitsOf(device)),
        moves_(&planner_, mesh_, limits_) {
    DISTIR_REQUIRE(dialect::ToMesh(device_mesh) == mesh_, ValueError)
        << "the module has the devices of the mesh in another shape; name that one";
    graph_of_ = [this](const ir::GlobalVar& name) -> const FunctionGraph& {
      return graphs_.Of(name);
    };
    const Works works(mod, outlined, CountsOf(counts), limits_);
    model_.emplace(*graphs_.all().front(), graph_of_, works, limits_, &moves_, root_);
  }
  Search(const Search&) = delete;

  /*! \brief The axes that serve for anything, and the least memory, with the name of a tensor that
   * is computed meanwhile. */
  Data Describe() const {
    Data data;
    ffi::Array<bool> usable;
    for (bool each : model_->UsableAxes()) usable.push_back(each);
    data.Set("usable", usable);
    const Model::LeastMemory least = model_->LeastPossible();
    data.Set("least_memory", least.bytes);
    if (least.graph != nullptr) {
      const propagation::Node& node = least.graph->nodes[least.node];
      const int slot = node.results.empty() ? node.operands[0] : node.results[0];
      data.Set("least_at", least.graph->slots[slot].name);
    }
    return data;
  }

  /*!
   * \param memory_limit Bytes of a device.
   * \param mixes As autoshard::Solve has it.
   * \param stop Called with the best cost (kInfinite if there is none) and the bound.
   * \return Cost and bound; if there is a choice, statements, parameters and the calls that read
   * them.
   */
  Data Choose(int64_t memory_limit, int64_t rounds, double gap, bool mixes,
              const ffi::Function& stop) {
    model_->SetMemoryLimit(memory_limit);
    const autoshard::Solution solution = autoshard::Solve(
        model_->problem(), static_cast<int32_t>(rounds), gap,
        [&stop](const autoshard::Solution& best) { return autoshard::Ends(stop, best); }, mixes);
    Data data;
    data.Set("cost", solution.cost);
    data.Set("bound", solution.bound);
    if (solution.choice.empty() && !model_->problem().nodes.empty()) return data;

    const auto chosen = [&](const FunctionGraph& graph, int slot) {
      return model_->ShardingOf(graph, slot, solution.choice);
    };
    ffi::Array<ffi::Any> calls, tensors, statements;
    for (const FunctionGraph* graph : model_->graphs()) {
      for (const Place& place : PlacesOf(*graph)) {
        if (!place.is_param) break;
        if (const auto sharding = chosen(*graph, place.slot); sharding.has_value())
          tensors.push_back(RowOf(graph->name, place, ToData(mesh_, *sharding)));
      }
      AddCalls(*graph, solution.choice, &calls);
    }
    for (const Statement& each :
         FindStatements(graphs_.all(), graph_of_, chosen, graphs_.meshes(), root_, &planner_))
      statements.push_back(RowOf(each.graph->name, each.place, ToData(mesh_, each.sharding)));
    data.Set("statements", statements);
    data.Set("tensors", tensors);
    data.Set("calls", calls);
    return data;
  }

 private:
  /*! \brief Adds rows for the calls that read parameters, or what only permutes or reshapes them.
   */
  void AddCalls(const FunctionGraph& graph, const autoshard::Choice& choice,
                ffi::Array<ffi::Any>* calls) const {
    std::set<int> params(graph.params.begin(), graph.params.end());
    const auto is_param = [&params](int slot) { return params.count(slot) > 0; };
    const auto names = [&graph](const propagation::SlotList& slots) {
      ffi::Array<ffi::Any> found;
      for (int slot : slots) found.push_back(graph.slots[slot].name);
      return found;
    };
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const propagation::Node& node = graph.nodes[i];
      if (std::none_of(node.operands.begin(), node.operands.end(), is_param)) continue;
      const bool is_annotation = node.name == "annotate_sharding";
      if (is_annotation || IsRearranged(node)) params.insert(node.results[0]);
      if (is_annotation) continue;  // what reads its result, which has the same name, is listed
      const Way& way = model_->WayOf(graph, i, choice);
      ffi::Array<ffi::Any> operands, results;
      for (const mesh::Sharding& each : way.operands) operands.push_back(ToData(mesh_, each));
      for (const mesh::Sharding& each : way.results) results.push_back(ToData(mesh_, each));
      ffi::Array<int> partial;
      if (!way.results.empty()) {
        for (const mesh::AxisRef& axis : way.results[0].partial) partial.push_back(axis.axis);
      }
      calls->push_back(ffi::Array<ffi::Any>{ffi::String(graph.name), node.name,
                                            names(node.operands), names(node.results), operands,
                                            results, partial});
    }
  }

  Graphs graphs_;
  const int root_;
  const mesh::Mesh mesh_;
  planning::Planner planner_;
  const DeviceLimits limits_;
  Moves moves_;
  GraphOf graph_of_;
  std::optional<Model> model_;
};

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      // The description of a program, and a function that chooses for a limit; see Search.
      .def("distir.autosharding.Search",
           [](ir::IRModule mod, ir::GlobalVar main, ir::DeviceMesh device_mesh, ffi::Any cluster,
              ir::IRModule outlined, Counts counts, Data device) {
             auto search = std::make_shared<Search>(mod, main, device_mesh, cluster, outlined,
                                                    counts, device);
             const ffi::Function choose =
                 support::Typed([search](int64_t memory_limit, int64_t rounds, double gap,
                                         bool mixes, ffi::Function stop) {
                   return search->Choose(memory_limit, rounds, gap, mixes, stop);
                 });
             return ffi::Array<ffi::Any>{search->Describe(), choose};
           })
      .def("distir.autosharding.SeparateBatchDims", [](ir::IRModule mod) {
        return ir::RewriteFunctions(mod, [](const ir::Function& function) {
          return propagation::SeparateBatchDims(propagation::BatchOverRows(function));
        });
      });
}

}  // namespace distir::autosharding
