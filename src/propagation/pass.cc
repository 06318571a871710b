// PropagateSharding: from annotations to DTensor types, across functions.
#include "propagation/pass.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "dialect/collective.h"
#include "ir/build.h"
#include "ir/names.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "propagation/batch_dims.h"
#include "propagation/emit.h"
#include "propagation/instances.h"
#include "rules/tir/rule.h"
#include "support/error.h"

namespace distir {
namespace propagation {

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

/*! \brief Relax functions of a module, which of them state shardings, and who calls whom. */
class CallGraph {
 public:
  explicit CallGraph(const ir::IRModule& mod) {
    for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
      ir::Function function = ir::Function::Cast(base);
      if (function.defined()) functions_[gv.get()] = Entry{gv, function};
    }
    for (auto& [key, entry] : functions_) Scan(key, entry);
    // A function that calls one that states shardings takes part too.
    std::vector<const ffi::Object*> pending;
    for (const auto& [key, entry] : functions_) {
      if (entry.takes_part) pending.push_back(key);
    }
    Spread(pending, &Entry::callers, &Entry::takes_part);
    for (const auto& [key, entry] : functions_) {
      if (!entry.takes_part) continue;
      for (const ffi::Object* callee : entry.callees) called_.insert(callee);
    }
    pending.clear();
    for (const auto& [key, entry] : functions_) {
      if (entry.takes_part) pending.push_back(key);
    }
    Spread(pending, &Entry::callees, &Entry::is_reached);
    // A function that takes no part stays as it is when something else can call it.
    pending.clear();
    for (auto& [key, entry] : functions_) {
      if (!entry.takes_part && (IsPublic(entry.function) || entry.is_value || !entry.is_reached)) {
        entry.stays = true;
        pending.push_back(key);
      }
    }
    Spread(pending, &Entry::callees, &Entry::stays);
  }

  bool IsRelaxFunction(const ir::GlobalVar& gv) const { return functions_.count(gv.get()) > 0; }
  const ir::Function& FunctionOf(const ir::GlobalVar& gv) const {
    return functions_.at(gv.get()).function;
  }

  /*!
   * \brief Functions to propagate from, ordered by name: those that take part and that others may
   * call, or that nobody who takes part calls.
   * \throws ValueError where there are public functions, and none of them takes part.
   */
  std::vector<ir::GlobalVar> Roots() const {
    RequirePublicPart();
    std::map<std::string, ir::GlobalVar> roots;
    for (const auto& [key, entry] : functions_) {
      if (entry.takes_part && (IsPublic(entry.function) || called_.count(key) == 0)) {
        roots.emplace(entry.gv.name(), entry.gv);
      }
    }
    std::vector<ir::GlobalVar> ordered;
    for (const auto& [name, gv] : roots) ordered.push_back(gv);
    return ordered;
  }

  /*! \brief Whether the function is kept as it is; others are replaced by what propagation makes of
   * them. */
  bool Stays(const ir::GlobalVar& gv) const { return functions_.at(gv.get()).stays; }

 private:
  struct Entry {
    ir::GlobalVar gv;
    ir::Function function;
    std::set<const ffi::Object*> callees = {};
    std::set<const ffi::Object*> callers = {};
    bool takes_part = false;
    bool is_reached = false;  // from a function that takes part, by calls
    bool is_value = false;    // used otherwise than by a call
    bool stays = false;
  };

  /*! \brief Sets a mark on everything reachable from the pending functions. */
  void Spread(std::vector<const ffi::Object*> pending, std::set<const ffi::Object*> Entry::* next,
              bool Entry::* mark) {
    while (!pending.empty()) {
      const Entry& entry = functions_.at(pending.back());
      pending.pop_back();
      for (const ffi::Object* key : entry.*next) {
        Entry& reached = functions_.at(key);
        if (reached.*mark) continue;
        reached.*mark = true;
        pending.push_back(key);
      }
    }
  }

  void RequirePublicPart() const {
    std::string annotated, outside;
    for (const auto& [key, entry] : functions_) {
      if (entry.takes_part && (IsPublic(entry.function) || entry.is_value)) return;
      if (entry.takes_part)
        annotated = std::min(annotated.empty() ? entry.gv.name() : annotated, entry.gv.name());
      if (IsPublic(entry.function))
        outside = std::min(outside.empty() ? entry.gv.name() : outside, entry.gv.name());
    }
    DISTIR_REQUIRE(annotated.empty() || outside.empty(), ValueError)
        << "the sharding annotations are in `" << annotated
        << "`, which is private and which no public function calls; annotate `" << outside
        << "`, call `" << annotated << "` from it, or make `" << annotated << "` public";
  }

  static bool IsPublic(const ir::Function& function) {
    return ir::GetAttr(function.attrs(), "global_symbol") != nullptr;
  }

  void Scan(const ffi::Object* key, Entry& entry) {
    for (const ir::Var& param : entry.function.params()) ScanType(param.ty(), entry);
    ir::VisitBindings(entry.function.body(),
                      [&](const ir::Binding& binding) { ScanBinding(binding, entry); });
    ScanValue(entry.function.body().body());
    for (const ffi::Object* callee : entry.callees) functions_.at(callee).callers.insert(key);
  }

  void ScanBinding(const ir::Binding& binding, Entry& entry) {
    ScanType(binding.var().ty(), entry);
    ir::VarBinding var_binding = ir::VarBinding::Cast(binding);
    if (!var_binding.defined()) return;
    if (auto call = ir::Call::Cast(var_binding.value()); call.defined()) {
      if (ir::IsOp(call.op(), "relax.dist.annotate_sharding")) entry.takes_part = true;
      if (functions_.count(call.op().get()) > 0) entry.callees.insert(call.op().get());
      for (const ir::Expr& arg : call.args()) ScanValue(arg);
    } else if (auto branch = ir::If::Cast(var_binding.value()); branch.defined()) {
      ScanValue(branch.true_branch().body());
      ScanValue(branch.false_branch().body());
    } else {
      ScanValue(var_binding.value());
    }
  }

  void ScanValue(const ir::Expr& value) {
    if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) ScanValue(field);
    }
    auto function = functions_.find(value.get());
    if (function != functions_.end()) function->second.is_value = true;
  }

  void ScanType(const ir::Type& type, Entry& entry) {
    entry.takes_part = entry.takes_part || dialect::HasDTensor(type);
  }

  std::map<const ffi::Object*, Entry> functions_;
  std::set<const ffi::Object*> called_;
};

class Propagation {
 public:
  explicit Propagation(const ir::IRModule& mod)
      : mod_(mod),
        calls_(mod),
        meshes_(mod),
        kernels_(mod.functions()),
        cluster_(cost::ToCluster(ir::GetAttr(mod.attrs(), cost::kClusterAttr))) {}

  ir::IRModule Run() {
    std::vector<ir::GlobalVar> roots = calls_.Roots();
    if (roots.empty()) return mod_;
    for (const ir::GlobalVar& root : roots) names_.Add(root.name());
    ir::FunctionMap functions;
    for (const auto& [gv, base] : mod_.functions()) {
      if (calls_.IsRelaxFunction(gv) && !calls_.Stays(gv)) continue;
      functions.Set(gv, base);
      names_.Add(gv.name());
    }
    Emitter emitter(&meshes_, &cluster_, IsFirst(),
                    [this](const std::string& name) { return names_.Fresh(name); });
    for (const auto& [gv, base] : functions) {
      if (auto function = ir::Function::Cast(base); function.defined()) emitter.Keep(function);
    }
    for (const ir::GlobalVar& root : roots) {
      emitter.EmitRoot(SolvedProgram(root), root.name());
    }
    ir::Count("functions", static_cast<int64_t>(emitter.functions().size()));
    for (const EmittedFunction& emitted : emitter.functions())
      functions.Set(emitted.name, emitted.function);
    return ir::MakeModule(functions, mod_.attrs(), meshes_.GlobalInfos());
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
    Program program =
        Unfold(GraphOf(root),
               [this](const ir::GlobalVar& gv) -> const FunctionGraph& { return GraphOf(gv); });
    Solve(&program, meshes_, cluster_);
    return program;
  }

  bool IsFirst() const {
    const auto& functions = mod_.functions();
    return std::none_of(functions.begin(), functions.end(), [](const auto& entry) {
      return ir::Function::Is(entry.second) &&
             ir::GetAttr(entry.second.attrs(), kStatedAttr) != nullptr;
    });
  }

  const FunctionGraph& GraphOf(const ir::GlobalVar& gv) {
    auto it = graphs_.find(gv.get());
    if (it == graphs_.end()) {
      auto graph = std::make_unique<FunctionGraph>(BuildGraph(
          gv.name(), SeparateBatchDims(calls_.FunctionOf(gv)), &meshes_, &kernels_,
          [this](const ir::GlobalVar& callee) { return calls_.IsRelaxFunction(callee); }));
      it = graphs_.emplace(gv.get(), std::move(graph)).first;
    }
    return *it->second;
  }

  ir::IRModule mod_;
  CallGraph calls_;
  dialect::MeshTable meshes_;
  rules::KernelTable kernels_;
  const cost::Cluster cluster_;
  std::map<const ffi::Object*, std::unique_ptr<FunctionGraph>> graphs_;
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

}  // namespace propagation
}  // namespace distir
