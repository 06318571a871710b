// Lists the passes from annotations to the programs of workers, in the order in which they run.
//
// Each row is a tvm.transform.Pass of its name. A row that is "implied" is run by whatever comes
// after it: Sequential([PropagateSharding(), LowerDistIR()]) is enough, as it is upstream. Rows are
// functions of their own folders, which know nothing of each other's order.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "decompose/pass.h"
#include "ir/report.h"
#include "ir/tvm/pass.h"
#include "lower/passes.h"
#include "optimize/pass.h"
#include "padding/pass.h"
#include "phases/needed_split.h"
#include "phases/phase.h"
#include "propagation/pass.h"
#include "redistribute/pass.h"
#include "support/functions.h"
#include "target/cpu/passes.h"
#include "unfuse/pass.h"

namespace distir::phases {

namespace ffi = tvm::ffi;

namespace {

enum class When { kAsked, kImplied };

struct Step {
  const char* pass;
  Phase needs;
  Phase gives;
  When when;
  ir::IRModule (*run)(const ir::IRModule&);  // null for a pass with options
  /*! \brief Shorter run of the step before a later pass; null for the same. */
  ir::IRModule (*run_implied)(const ir::IRModule&) = nullptr;
};

// clang-format off
constexpr Phase kAnnotated = Phase::kAnnotated, kPropagated = Phase::kPropagated,
                kLegalized = Phase::kLegalized, kLowered = Phase::kLowered,
                kRuntime = Phase::kRuntime;

const Step kSteps[] = {
    // pass                        needs        gives        when
    {"SplitFused",                 kAnnotated,  kAnnotated,  When::kImplied, unfuse::SplitFused, SplitWhereNeeded},
    {"PropagateSharding",          kAnnotated,  kPropagated, When::kAsked,   propagation::PropagateSharding},
    {"DecomposeUneven",            kPropagated, kPropagated, When::kImplied, decompose::DecomposeUneven},
    {"PadShards",                  kPropagated, kPropagated, When::kImplied, padding::PadShards},
    {"DecomposeSharded",           kPropagated, kPropagated, When::kImplied, decompose::DecomposeSharded},
    {"LegalizeRedistribute",       kPropagated, kLegalized,  When::kImplied, redistribute::LegalizeRedistribute},
    {"OptimizeCollectives",        kPropagated, kLegalized,  When::kAsked,   nullptr},
    {"LowerGlobalViewToLocalView", kPropagated, kLegalized,  When::kImplied, lower::LowerGlobalViewToLocalView},
    {"LowerDistIR",                kPropagated, kLowered,    When::kAsked,   lower::LowerDistIR},
    {"LowerCCL",                   kLowered,    kRuntime,    When::kAsked,   lower::LowerCCL},
};

// Steps on a worker's program for CPUs, between passes of TVM, which
// python/distir_ext/compile/cpu.py lists.
const Step kCpuSteps[] = {
    {"DispatchMatmul",             kLowered,    kRuntime,    When::kAsked,   target::DispatchMatmul},
    {"DispatchConvolution",        kLowered,    kRuntime,    When::kAsked,   target::DispatchConvolution},
    {"AppendInPlace",              kLowered,    kRuntime,    When::kAsked,   target::AppendInPlace},
    {"ShareResults",               kLowered,    kRuntime,    When::kAsked,   target::ShareResults},
    {"ShareOperands",              kLowered,    kRuntime,    When::kAsked,   target::ShareOperands},
    {"WriteInPlace",               kLowered,    kRuntime,    When::kAsked,   target::WriteInPlace},
};
// clang-format on

/*! \brief The first pass of the list that gives a phase. */
const char* PassTo(Phase phase) {
  const Step* step = std::find_if(std::begin(kSteps), std::end(kSteps),
                                  [phase](const Step& each) { return each.gives == phase; });
  TVM_FFI_ICHECK(step != std::end(kSteps)) << "no pass gives a " << NameOf(phase) << " module";
  return step->pass;
}

const char* WhatIsLeft(Phase phase) {
  switch (phase) {
    case Phase::kAnnotated:
      return "has annotations that PropagateSharding has not read";
    case Phase::kPropagated:
      return "has DTensors with redistributions or reductions that are not written out";
    default:
      return "has DTensors";
  }
}

/*!
 * \brief Refuses a module that has not come as far as a pass needs; one that is not distributed is
 * let through.
 *
 * \return The phase of the least advanced function with annotations or DTensors; none without such.
 * \throws ValueError naming a function that is behind, and what to run first.
 */
std::optional<Phase> RequirePhase(const ir::IRModule& mod, Phase needed, const std::string& pass) {
  const LeastAdvancedFunction least = LeastAdvanced(mod);
  if (!least.phase || *least.phase >= needed) return least.phase;
  const Phase next = static_cast<Phase>(static_cast<int>(*least.phase) + 1);
  TVM_FFI_THROW(ValueError) << "`" << least.name << "` " << WhatIsLeft(*least.phase) << ": run "
                            << PassTo(next) << " before " << pass << ", which needs a "
                            << NameOf(needed)
                            << " module (distir_ext.lower runs all that is missing)";
}

/*! \brief The implied steps before one, of those for a module of the phase that it needs. */
ir::IRModule RunImplied(const std::string& pass, Phase needs, ir::IRModule mod) {
  for (const Step& step : kSteps) {
    if (step.pass == pass) break;
    if (step.when == When::kImplied && step.needs == needs) {
      mod = ir::RunReported(step.pass, mod, step.run_implied ? step.run_implied : step.run,
                            ir::ReportOf::kThoseThatDoSomething);
    }
  }
  return mod;
}

using Transform = std::function<ir::IRModule(const ir::IRModule&)>;

/*! \brief A pass that runs a step by itself. */
ffi::ObjectRef MakeStep(const std::string& name, Phase needs, const Transform& run) {
  return ir::MakeModulePass(name, [name, needs, run](ir::IRModule mod) {
    if (needs != kAnnotated) RequirePhase(mod, needs, name);
    return run(mod);
  });
}

/*! \brief A pass that runs the implied steps before a step, then the step. */
ffi::ObjectRef MakePass(const std::string& name, Phase needs, const Transform& run) {
  return MakeStep(name, needs, [name, needs, run](const ir::IRModule& mod) {
    return run(RunImplied(name, needs, mod));
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  for (const Step& step : kSteps) {
    if (step.run == nullptr) continue;
    support::Functions().def(("distir.transform." + std::string(step.pass)).c_str(),
                             [&step] { return MakePass(step.pass, step.needs, step.run); });
    support::Functions().def(("distir.step." + std::string(step.pass)).c_str(),
                             [&step] { return MakeStep(step.pass, step.needs, step.run); });
  }
  for (const Step& step : kCpuSteps) {
    support::Functions().def(("distir.transform." + std::string(step.pass)).c_str(),
                             [&step] { return MakeStep(step.pass, step.needs, step.run); });
  }
  support::Functions().def(
      "distir.transform.OptimizeCollectives",
      [](ffi::Array<ffi::String> enable, ffi::Array<ffi::String> disable, int64_t combine_bytes,
         int64_t sequence_bytes, int64_t prefetch_bytes, ffi::String ccl) {
        const std::set<std::string> chosen = optimize::Choose(enable, disable);
        const optimize::Options options{combine_bytes, sequence_bytes, prefetch_bytes, ccl};
        const std::string name = "OptimizeCollectives";
        return ir::MakeModulePass(name, [name, chosen, options](const ir::IRModule& mod) {
          // LowerDistIR runs what is implied in any case, and checks it.
          const bool is_legal = RequirePhase(mod, kPropagated, name) == kLegalized;
          return optimize::OptimizeCollectives(is_legal ? mod : RunImplied(name, kPropagated, mod),
                                               chosen, options);
        });
      });
  // By step: name, phase that it needs, phase that it gives, whether it is implied.
  support::Functions().def("distir.phases.Steps", [] {
    ffi::Array<ffi::Array<ffi::Any>> rows;
    for (const Step& step : kSteps) {
      rows.push_back({ffi::String(step.pass), ffi::String(NameOf(step.needs)),
                      ffi::String(NameOf(step.gives)), step.when == When::kImplied});
    }
    return rows;
  });
  support::Functions().def("distir.phases.PhaseOf", [](ir::IRModule mod) -> ffi::Any {
    const std::optional<Phase> phase = PhaseOf(mod);
    return phase ? ffi::Any(ffi::String(NameOf(*phase))) : ffi::Any();
  });
}

}  // namespace

}  // namespace distir::phases
