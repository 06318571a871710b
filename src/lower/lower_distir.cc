// LowerDistIR: from DTensors to per-worker programs.
#include <tvm/ffi/error.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "dialect/mesh_table.h"
#include "dialect/operators/manual.h"
#include "ir/build.h"
#include "ir/module/call_graph.h"
#include "ir/module/names.h"
#include "ir/module/renew.h"
#include "ir/report.h"
#include "lower/local/local_shardings.h"
#include "lower/passes.h"
#include "lower/signature.h"
#include "lower/spmd/spmd_program.h"
#include "lower/stages/spmd_groups.h"
#include "lower/stages/virtual_stage_programs.h"
#include "lower/stages/virtual_stages.h"
#include "padding/extents.h"

namespace distir::lower {

namespace {

class ModuleLowering {
 public:
  explicit ModuleLowering(const ir::IRModule& mod)
      : mod_(mod),
        meshes_(dialect::TableWithRegions(mod)),
        calls_(mod),
        roots_(RootsOfFunctions(mod, calls_, &meshes_)),
        plans_(cost::ToCluster(ir::GetAttr(mod.attrs(), cost::kClusterAttr)), &meshes_),
        groups_(&meshes_) {
    for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
      ir::Function function = ir::Function::Cast(base);
      if (!function.defined() || roots_[gv.get()].empty()) {
        functions_.Set(gv, base);
        names_.Add(gv.name());
      } else {
        index_[gv.get()] = distributed_.size();
        distributed_.emplace_back(gv, function);
      }
    }
  }

  ir::IRModule Run() {
    if (distributed_.empty()) return mod_;
    std::set<int64_t> device_ids;
    SignatureWriter signature(&meshes_);
    for (const auto& [gv, function] : Entries()) {
      const VirtualStages virtual_stages(function, gv.name(), &meshes_);
      std::vector<SpmdGroup> groups = SpmdGroupsOf(gv, virtual_stages);
      std::vector<EntryProgram> versions;
      for (size_t i = 0; i < groups.size(); ++i) {
        stage_ = i;
        num_groups_ = groups.size();
        const Version& version = VersionFor(gv, function, groups[i].roots, &virtual_stages);
        for (const VirtualStageVersion& each : version.virtual_stages) {
          const bool is_last = &each == &version.virtual_stages.back();
          versions.push_back({each.name.name(), groups[i].device_ids, each.virtual_stage,
                              each.params, is_last ? version.results : std::vector<int>(),
                              each.takes_sizes ? version.sizes : std::vector<std::string>()});
        }
        device_ids.insert(groups[i].device_ids.begin(), groups[i].device_ids.end());
      }
      std::stable_sort(versions.begin(), versions.end(),
                       [](const EntryProgram& a, const EntryProgram& b) {
                         return a.virtual_stage < b.virtual_stage;
                       });
      signature.Add(gv.name(), function, versions);
    }
    const std::vector<int64_t> all_ids(device_ids.begin(), device_ids.end());
    ffi::Array<ffi::String> apart;
    for (const auto& [gv, base] : ir::OrderedFunctions(mod_)) {
      // Every device computes all of a public function that takes no part.
      auto function = ir::Function::Cast(base);
      if (!function.defined() || index_.count(gv.get()) > 0) continue;
      apart.push_back(gv.name());
      if (ir::IsPublic(function)) signature.AddReplicated(gv.name(), function, all_ids);
    }
    ir::Node attrs = ir::WithAttr(mod_.attrs(), kSignatureAttr, signature.Finish());
    if (!apart.empty()) attrs = ir::WithAttr(attrs, kApartAttr, apart);
    return ir::MakeModule(functions_, attrs, mod_.global_infos());
  }

 private:
  using Named = std::pair<ir::GlobalVar, ir::Function>;

  /*! \brief The SPMD groups of an entry's devices, in the order of its pipeline where that is
   * stated.
   */
  std::vector<SpmdGroup> SpmdGroupsOf(const ir::GlobalVar& gv,
                                      const VirtualStages& virtual_stages) {
    std::vector<SpmdGroup> groups = SpmdGroups(roots_[gv.get()], meshes_);
    std::stable_sort(groups.begin(), groups.end(), [&](const SpmdGroup& a, const SpmdGroup& b) {
      return virtual_stages.PositionOf(a.device_ids[0]) <
             virtual_stages.PositionOf(b.device_ids[0]);
    });
    return groups;
  }

  // Functions that something outside may call: public ones, and those that nothing inside calls.
  std::vector<Named> Entries() {
    std::vector<Named> entries;
    for (const Named& named : distributed_) {
      const bool is_called = !calls_[*calls_.Find(named.first)].callers.empty();
      if (is_called && ir::GetAttr(named.second.attrs(), kInterleavedAttr) != nullptr) {
        TVM_FFI_THROW(ValueError) << "`" << named.first.name() << "` has interleaved stages and is "
                                  << "called in the module; only a function that nothing calls may "
                                  << "have them";
      }
      if (ir::IsPublic(named.second) || !is_called) entries.push_back(named);
    }
    return entries;
  }

  struct VirtualStageVersion {
    ir::GlobalVar name;
    int virtual_stage;
    std::vector<int> params;  // positions among the function's
    bool takes_sizes;
  };
  struct Version {
    ir::GlobalVar name;              // of its first virtual stage
    std::vector<std::string> sizes;  // as in SpmdProgram
    std::vector<int> results;        // as in SpmdProgram
    std::vector<VirtualStageVersion> virtual_stages;
  };

  /*! \brief The worker's version of a function for an SPMD group of these meshes; one version per
   * set of its meshes present.
   * \param virtual_stages Of an entry, or null. */
  const Version& VersionFor(const ir::GlobalVar& gv, const ir::Function& function,
                            const std::set<int>& group_roots, const VirtualStages* virtual_stages) {
    const std::set<int>& all = roots_[gv.get()];
    std::set<int> present;
    for (int root : group_roots) {
      if (all.count(root) > 0) present.insert(root);
    }
    auto key = std::make_pair(gv.get(), present);
    auto found = versions_.find(key);
    if (found != versions_.end()) return found->second;

    bool is_whole = present == all && SpmdGroups(all, meshes_).size() == 1;
    std::string name =
        names_.Fresh(is_whole ? gv.name() : gv.name() + "_stage" + std::to_string(stage_));
    ir::GlobalVar version = ir::MakeGlobalVar(name);
    Version& entry = versions_.emplace(key, Version{version, {}, {}, {}}).first->second;
    SpmdContext context{
        &meshes_,
        &plans_,
        &groups_,
        is_whole ? nullptr : &present,
        is_whole ? nullptr : &IndexOf(gv, function),
        [&](const ir::GlobalVar& callee) { return CalleeVersion(callee, group_roots); },
        is_whole ? nullptr : virtual_stages};
    SpmdProgram worker = MakeSpmdProgram(function, gv.name(), context);
    for (const VirtualStageProgram& program : CutIntoVirtualStages(worker)) {
      ir::Function lowered = program.function;
      if (!lowered_.insert(gv.get()).second) lowered = ir::RenewVars(lowered);
      if (!entry.virtual_stages.empty()) {
        name = names_.Fresh(gv.name() + "_stage" +
                            std::to_string(program.virtual_stage * num_groups_ + stage_));
        version = ir::MakeGlobalVar(name);
      }
      const ffi::Any symbol = ir::GetAttr(lowered.attrs(), "global_symbol");
      if (symbol != nullptr && symbol.cast<ffi::String>() != name) {
        ir::Node attrs = ir::WithAttr(lowered.attrs(), "global_symbol", ffi::String(name));
        lowered = ir::MakeFunction(lowered.params(), lowered.body(), lowered.ret_ty(),
                                   lowered.is_pure(), attrs);
      }
      ir::SetType(version, lowered.ty());
      functions_.Set(version, lowered);
      ir::Count("programs");
      std::vector<int> params;
      for (int position : program.params) params.push_back(worker.params[position]);
      entry.virtual_stages.push_back(
          {version, program.virtual_stage, std::move(params), program.takes_sizes});
    }
    entry.sizes = std::move(worker.sizes);
    entry.results = std::move(worker.results);
    return entry;
  }

  std::optional<ir::GlobalVar> CalleeVersion(const ir::GlobalVar& callee,
                                             const std::set<int>& group_roots) {
    auto it = index_.find(callee.get());
    if (it == index_.end()) return ir::GlobalVar();
    const auto& [gv, function] = distributed_[it->second];
    const std::set<int>& all = roots_[gv.get()];
    for (int root : group_roots) {
      if (all.count(root) == 0) continue;
      const Version& version = VersionFor(gv, function, group_roots, nullptr);
      // Of one that takes sizes already, the call has them.
      const bool takes_sizes = ir::GetAttr(function.attrs(), padding::kTakesSizesAttr) != nullptr;
      const bool has_one_group = SpmdGroups(all, meshes_).size() == 1;
      if (!version.sizes.empty() && !(takes_sizes && has_one_group)) {
        TVM_FFI_THROW(ValueError) << "`" << gv.name() << "` spans several meshes, and symbolic "
                                  << "dimension `" << version.sizes[0] << "` is not a size of its "
                                  << "parameters on all of them; inline the function";
      }
      return version.name;
    }
    return std::nullopt;
  }

  const MeshIndex& IndexOf(const ir::GlobalVar& gv, const ir::Function& function) {
    std::unique_ptr<MeshIndex>& index = mesh_indices_[gv.get()];
    if (index == nullptr) index = std::make_unique<MeshIndex>(function, &meshes_, roots_);
    return *index;
  }

  ir::IRModule mod_;
  dialect::MeshTable meshes_;
  ir::CallGraph calls_;
  FunctionRoots roots_;
  std::vector<Named> distributed_;
  std::map<const ffi::Object*, size_t> index_;  // in distributed_, by global variable
  ir::FunctionMap functions_;
  ir::FunctionNames names_;
  std::unordered_map<const ffi::Object*, std::unique_ptr<MeshIndex>> mesh_indices_;
  std::map<std::pair<const ffi::Object*, std::set<int>>, Version> versions_;
  std::set<const ffi::Object*> lowered_;  // functions that have a version
  TransferPlans plans_;
  DeviceGroups groups_;
  size_t stage_ = 0;  // the SPMD group of the entry being lowered, for names
  size_t num_groups_ = 0;
};

}  // namespace

ir::IRModule LowerDistIR(const ir::IRModule& mod) { return ModuleLowering(mod).Run(); }

}  // namespace distir::lower
