// OptimizeCollectives: the optimisations of collectives on DTensors, in order.
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <set>
#include <utility>

#include "abi/collective.h"
#include "ir/build.h"
#include "ir/report.h"
#include "optimize/optimization.h"
#include "support/functions.h"

namespace distir::optimize {

namespace ffi = tvm::ffi;

const std::vector<Optimization>& AllOptimizations() {
  // clang-format off
  static const std::vector<Optimization> all = {
      {"share_collectives", ShareCollectives},
      {"move_once", MoveOnce},
      {"cancel_collectives", CancelCollectives},
      {"dispatch_experts", DispatchExperts},
      {"dispatch_slots", DispatchSlots},
      {"defer_reductions", DeferReductions},
      {"scatter_reductions", ScatterReductions},
      {"dispatch_weighted", DispatchWeighted},
      {"sequence_parallel", SequenceParallel, false},
      {"fuse_all_reduce_norm", FuseAllReduceNorm, false},
      {"hoist_gathers", HoistGathers},
      {"combine_collectives", CombineCollectives},
      {"schedule_collectives", ScheduleCollectives},
  };
  // clang-format on
  return all;
}

namespace {

// Tallies of each optimisation: ["share_collectives", ["defer_reductions", 2, {"why not": 1}]].
constexpr const char* kTallies = "distir.optimizations";

ffi::Array<ffi::Any> ToAttr(const std::vector<std::pair<std::string, Tally>>& tallies) {
  ffi::Array<ffi::Any> all;
  for (const auto& [name, tally] : tallies) {
    if (tally.matched == 0 && tally.skipped.empty()) {
      all.push_back(ffi::String(name));
      continue;
    }
    ffi::Map<ffi::String, ffi::Any> skipped;
    for (const auto& [why, count] : tally.skipped) skipped.Set(why, static_cast<int64_t>(count));
    all.push_back(
        ffi::Array<ffi::Any>{ffi::String(name), static_cast<int64_t>(tally.matched), skipped});
  }
  return all;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  // Names in order of running, and whether each is on by default.
  support::Functions().def("distir.optimize.List", [] {
    ffi::Array<ffi::Array<ffi::Any>> all;
    for (const Optimization& each : AllOptimizations())
      all.push_back({ffi::String(each.name), each.is_on});
    return all;
  });
}

}  // namespace

bool IsOffered(const Options& options, abi::Collective collective) {
  const std::string only = abi::RecordOf(collective).only_backend;
  return only.empty() || only == options.ccl;
}

std::set<std::string> Choose(const ffi::Array<ffi::String>& enable,
                             const ffi::Array<ffi::String>& disable) {
  std::set<std::string> chosen, known;
  std::string names;
  for (const Optimization& each : AllOptimizations()) {
    known.insert(each.name);
    names += (names.empty() ? "" : ", ") + std::string(each.name);
    if (each.is_on) chosen.insert(each.name);
  }
  for (const auto* list : {&enable, &disable}) {
    for (const ffi::String& name : *list) {
      if (known.count(name) > 0) continue;
      TVM_FFI_THROW(ValueError) << "there is no optimisation `" << static_cast<std::string>(name)
                                << "` of collectives; there are " << names;
    }
  }
  for (const ffi::String& name : enable) chosen.insert(name);
  for (const ffi::String& name : disable) chosen.erase(name);
  return chosen;
}

ir::IRModule OptimizeCollectives(const ir::IRModule& mod, const std::set<std::string>& chosen,
                                 const Options& options) {
  dialect::MeshTable meshes(mod);
  rules::KernelTable kernels(mod.functions());
  Costs costs(cost::ToCluster(ir::GetAttr(mod.attrs(), cost::kClusterAttr)));
  Program program{{}, &meshes, &kernels, &costs, options};
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (function.defined() && dialect::IsDistributed(function))
      program.functions.push_back({gv, gv, std::make_unique<EditableFunction>(function)});
  }
  if (program.functions.empty()) return mod;
  std::vector<std::pair<std::string, Tally>> tallies;
  for (const Optimization& each : AllOptimizations()) {
    if (chosen.count(each.name) == 0) continue;
    tallies.emplace_back(each.name, Tally());
    each.run(&program, &tallies.back().second);
  }
  ir::FunctionMap functions = mod.functions();
  for (NamedFunction& each : program.functions) {
    if (!each.name.same_as(each.before)) functions.erase(each.before);
    functions.Set(each.name, each.editable->Finish());
  }
  for (const auto& [name, tally] : tallies) {
    ir::Count(name, tally.matched);
    for (const auto& [why, times] : tally.skipped) ir::Skip(name, why, times);
  }
  return ir::MakeModule(functions, ir::WithAttr(mod.attrs(), kTallies, ToAttr(tallies)),
                        meshes.GlobalInfos());
}

}  // namespace distir::optimize
