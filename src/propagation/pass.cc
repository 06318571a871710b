// PropagateSharding: from annotations to DTensor types, across functions.
#include "propagation/pass.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "dialect/operators/annotation.h"
#include "dialect/operators/manual.h"
#include "ir/build.h"
#include "ir/module/call_graph.h"
#include "ir/module/names.h"
#include "ir/notes.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "propagation/constant_positions.h"
#include "propagation/copied_heads.h"
#include "propagation/emission/emit.h"
#include "propagation/instances.h"
#include "propagation/merged_dims.h"
#include "propagation/row_numbers.h"
#include "rules/tir/rule.h"
#include "support/error.h"

namespace distir::propagation {

namespace {

/*! \brief A sharding by whole axes of a mesh; replicated where these cannot express it. */
AxesOfDims AxesOn(const mesh::Mesh& view, const mesh::Mesh& root, const mesh::Sharding& sharding) {
  if (view == root) return WholeAxes(root, sharding).value_or(AxesOfDims());
  AxesOfDims axes(sharding.dims.size());
  const auto placement = mesh::ToPlacementOn(view, root, sharding);
  for (int axis = 0; placement.has_value() && axis < view.ndim(); ++axis) {
    if ((*placement)[axis] >= 0) axes[(*placement)[axis]].push_back(axis);
  }
  return axes;
}

/*!
 * \brief Relax functions of a module that take part in propagation.
 *
 * A function *takes part* if it, or one that it calls, states shardings.
 */
class Participants {
 public:
  explicit Participants(const ir::IRModule& mod) : calls_(mod) {
    std::vector<bool> states(calls_.size());
    for (size_t i = 0; i < calls_.size(); ++i) {
      functions_.push_back(ir::Function::Cast(mod.functions().at(calls_[i].name)));
      states[i] = StatesShardings(functions_[i]);
    }
    takes_part_ = calls_.WithCallers(std::move(states));
    // A function that takes no part stays as it is when something else can call it.
    const std::vector<bool> is_reached = calls_.WithCallees(takes_part_);
    std::vector<bool> stays(calls_.size());
    for (size_t i = 0; i < calls_.size(); ++i)
      stays[i] = !takes_part_[i] && (IsOpen(i) || !is_reached[i]);
    stays_ = calls_.WithCallees(std::move(stays));
  }

  bool IsRelaxFunction(const ir::GlobalVar& gv) const { return calls_.Find(gv).has_value(); }
  const ir::Function& FunctionOf(const ir::GlobalVar& gv) const {
    return functions_[*calls_.Find(gv)];
  }

  /*!
   * \brief Functions to propagate from, ordered by name: those that take part and that others may
   * call, or that nobody who takes part calls.
   * \throws ValueError where there are public functions, and none of them takes part.
   */
  std::vector<ir::GlobalVar> Roots() const {
    RequirePublicPart();
    std::vector<ir::GlobalVar> roots;
    for (size_t i = 0; i < calls_.size(); ++i) {
      const std::vector<size_t>& callers = calls_[i].callers;
      const bool is_called = std::any_of(callers.begin(), callers.end(),
                                         [this](size_t caller) { return takes_part_[caller]; });
      if (takes_part_[i] && (ir::IsPublic(functions_[i]) || !is_called))
        roots.push_back(calls_[i].name);
    }
    return roots;
  }

  /*! \brief True if the function is kept as it is; others are replaced by what propagation makes of
   * them. */
  bool Stays(const ir::GlobalVar& gv) const { return stays_[*calls_.Find(gv)]; }

 private:
  /*! \brief True if more may call a function than calls of the module show. */
  bool IsOpen(size_t i) const { return ir::IsPublic(functions_[i]) || calls_[i].is_value; }

  void RequirePublicPart() const {
    std::string annotated, outside;  // the first of each by name
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (takes_part_[i] && IsOpen(i)) return;
      if (takes_part_[i] && annotated.empty()) annotated = calls_[i].name.name();
      if (ir::IsPublic(functions_[i]) && outside.empty()) outside = calls_[i].name.name();
    }
    DISTIR_REQUIRE(annotated.empty() || outside.empty(), ValueError)
        << "the sharding annotations are in `" << annotated
        << "`, which is private and which no public function calls; annotate `" << outside
        << "`, call `" << annotated << "` from it, or make `" << annotated << "` public";
  }

  static bool StatesShardings(const ir::Function& function) {
    bool states = false;
    for (const ir::Var& param : function.params())
      states = states || dialect::HasDTensor(param.ty());
    ir::VisitBindings(function.body(), [&states](const ir::Binding& binding) {
      if (states) return;
      const ir::Call call = ir::BoundCall(binding);
      states = dialect::HasDTensor(binding.var().ty()) || dialect::IsAnnotation(call) ||
               dialect::CrossesRegion(call);
    });
    return states;
  }

  ir::CallGraph calls_;
  // By number in calls_.
  std::vector<ir::Function> functions_;
  std::vector<bool> takes_part_, stays_;
};

class Propagation {
 public:
  explicit Propagation(const ir::IRModule& mod)
      : mod_(mod),
        participants_(mod),
        meshes_(dialect::TableWithRegions(mod)),
        kernels_(mod.functions()),
        planner_(cost::ToCluster(ir::GetAttr(mod.attrs(), cost::kClusterAttr))) {}

  ir::IRModule Run() {
    std::vector<ir::GlobalVar> roots = participants_.Roots();
    if (roots.empty()) return mod_;
    for (const ir::GlobalVar& root : roots) names_.Add(root.name());
    ir::FunctionMap functions;
    for (const auto& [gv, base] : mod_.functions()) {
      if (participants_.IsRelaxFunction(gv) && !participants_.Stays(gv)) continue;
      functions.Set(gv, base);
      names_.Add(gv.name());
    }
    Emitter emitter(&meshes_, &planner_, IsFirst(),
                    [this](const std::string& name) { return names_.Fresh(name); });
    for (const auto& [gv, base] : functions) {
      if (auto function = ir::Function::Cast(base); function.defined()) emitter.Keep(function);
    }
    for (const ir::GlobalVar& root : roots) {
      Program program = SolvedProgram(root);
      while (KeepApart(program)) program = SolvedProgram(root);
      RequireOutside(program);
      emitter.EmitRoot(program, root.name());
    }
    ir::Count("functions", static_cast<int64_t>(emitter.functions().size()));
    for (const EmittedFunction& emitted : emitter.functions())
      functions.Set(emitted.name, emitted.function);
    return ir::MakeModule(functions, meshes_.ModuleAttrs(mod_.attrs()), meshes_.GlobalInfos());
  }

  VarShardings ShardingsOf(const ir::GlobalVar& function, const mesh::Mesh& view) {
    const Program program = SolvedProgram(function);
    const Instance& instance = program.instances[0];
    VarShardings shardings;
    for (const auto& [var, slots] : instance.graph->var_slots) {
      std::vector<AxesOfDims>& of_var = shardings[var];
      for (int local : slots) {
        const SlotState& slot = program.slots[instance.Slot(local)];
        of_var.push_back(AxesOn(view, meshes_.Root(slot.root), slot.sharding));
      }
    }
    return shardings;
  }

 private:
  Program SolvedProgram(const ir::GlobalVar& root) {
    while (true) {
      Program program =
          Unfold(GraphOf(root),
                 [this](const ir::GlobalVar& gv) -> const FunctionGraph& { return GraphOf(gv); });
      Solve(&program, meshes_, &planner_);
      const std::vector<StatedDim> copied = CopiedHeads(program);
      if (copied.empty()) return program;
      Open(copied);
    }
  }

  /*! \brief Writes functions of a program on dimensions that reshapes merge or split though they
   * are sharded; false if that changes nothing. */
  bool KeepApart(const Program& program) {
    std::vector<std::pair<FunctionGraph*, ir::Function>> written;
    for (const auto& [function, graph] : graphs_) {
      std::vector<Dims>& apart = apart_[function];
      const size_t known = apart.size();
      for (Dims& dims : StridedDims(program, *graph)) {
        if (!HasDims(apart, dims)) apart.push_back(std::move(dims));
      }
      if (apart.size() == known) continue;
      ir::Function separated = SeparateDims(graph->function, apart);
      if (!separated.same_as(graph->function))
        written.emplace_back(graph.get(), std::move(separated));
    }
    for (auto& [graph, function] : written) *graph = MakeGraph(graph->name, function);
    ir::Count("functions with separate dimensions", static_cast<int64_t>(written.size()));
    return !written.empty();
  }

  void Open(const std::vector<StatedDim>& copied) {
    std::map<const Source*, std::vector<int>> dims;
    for (const StatedDim& each : copied) dims[each.source].push_back(each.dim);
    for (auto& [function, graph] : graphs_) {
      for (Source& source : graph->sources) {
        auto found = dims.find(&source);
        if (found == dims.end()) continue;
        for (int dim : found->second) {
          source.taken_back.emplace_back(dim, mesh::NumShards(source.sharding.dims[dim]));
          source.sharding.dims[dim].clear();
          source.open[dim] = true;
          ir::Count("copied heads");
        }
      }
    }
  }

  /*! \brief Requires that the results of a function have left all regions. */
  void RequireOutside(const Program& program) const {
    const Instance& instance = program.instances[0];
    for (int result : instance.graph->results) {
      const dialect::ManualRegion* region =
          meshes_.RegionOf(program.slots[instance.Slot(result)].root);
      DISTIR_REQUIRE(region == nullptr, ValueError)
          << "`" << instance.graph->name << "` returns a value of a manual region over "
          << mesh::ToString(region->manual, meshes_.Root(region->outer))
          << "; let it leave the region first, as a result of the function that dx.manual is given";
    }
  }

  bool IsFirst() const {
    const auto& functions = mod_.functions();
    return std::none_of(functions.begin(), functions.end(), [](const auto& entry) {
      return ir::Function::Is(entry.second) &&
             ir::GetAttr(entry.second.attrs(), ir::kStatedAttr) != nullptr;
    });
  }

  const FunctionGraph& GraphOf(const ir::GlobalVar& gv) {
    auto it = graphs_.find(gv.get());
    if (it == graphs_.end()) {
      auto graph = std::make_unique<FunctionGraph>(MakeGraph(
          gv.name(),
          SeparateBatchDims(BatchOverRows(SliceAtConstants(participants_.FunctionOf(gv))))));
      it = graphs_.emplace(gv.get(), std::move(graph)).first;
    }
    return *it->second;
  }

  FunctionGraph MakeGraph(const std::string& name, const ir::Function& function) {
    return BuildGraph(name, function, &meshes_, &kernels_, [this](const ir::GlobalVar& callee) {
      return participants_.IsRelaxFunction(callee);
    });
  }

  ir::IRModule mod_;
  Participants participants_;
  dialect::MeshTable meshes_;
  rules::KernelTable kernels_;
  planning::Planner planner_;
  std::map<const ffi::Object*, std::unique_ptr<FunctionGraph>> graphs_;
  std::map<const ffi::Object*, std::vector<Dims>> apart_;  // dimensions to separate, by function
  ir::FunctionNames names_;
};

}  // namespace

std::optional<AxesOfDims> WholeAxes(const mesh::Mesh& mesh, const mesh::Sharding& sharding) {
  AxesOfDims axes;
  for (const mesh::AxisList& list : sharding.dims) {
    axes.emplace_back();
    for (const mesh::AxisRef& ref : list) {
      if (!(ref == mesh::FullAxis(mesh, ref.axis))) return std::nullopt;
      axes.back().push_back(ref.axis);
    }
  }
  return axes;
}

ir::IRModule PropagateSharding(const ir::IRModule& mod) { return Propagation(mod).Run(); }

VarShardings SolvedShardings(const ir::IRModule& mod, const ir::GlobalVar& function,
                             const ir::DeviceMesh& view) {
  return Propagation(mod).ShardingsOf(function, dialect::ToMesh(view));
}

}  // namespace distir::propagation
