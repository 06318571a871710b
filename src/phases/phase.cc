#include "phases/phase.h"

#include "dialect/copies_reduction.h"
#include "dialect/mesh_table.h"
#include "ir/build.h"
#include "ir/rewriter.h"
#include "lower/signature.h"
#include "support/error.h"

namespace distir {
namespace phases {

namespace {

constexpr const char* kNames[] = {"annotated", "propagated", "legalized", "lowered", "runtime"};

/*! \brief The phase of a function with annotations or DTensors. */
std::optional<Phase> PhaseOfFunction(const ir::Function& function) {
  bool is_annotated = false, is_redistributed = false;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    ir::Call call = ir::BoundCall(binding);
    if (!call.defined() || !ir::Op::Is(call.op())) return;
    is_annotated = is_annotated || ir::IsOp(call.op(), "relax.dist.annotate_sharding");
    is_redistributed = is_redistributed || dialect::IsLegalizable(call);
  });
  if (is_annotated) return Phase::kAnnotated;
  if (!dialect::IsDistributed(function)) return std::nullopt;
  const bool is_legal = dialect::HasExplicitReductions(function) && !is_redistributed;
  return is_legal ? Phase::kLegalized : Phase::kPropagated;
}

/*! \brief The least advanced of the functions with annotations or DTensors, and its phase. */
struct Least {
  std::string function;
  std::optional<Phase> phase;
};

Least LeastAdvanced(const ir::IRModule& mod) {
  Least least;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    const std::optional<Phase> phase = PhaseOfFunction(function);
    if (phase && (!least.phase || *phase < *least.phase)) least = {gv.name(), phase};
  }
  return least;
}

/*! \brief What leads to a phase from the one before it. */
const char* PassTo(Phase phase) {
  switch (phase) {
    case Phase::kAnnotated:
      return "AnnotateSharding";
    case Phase::kPropagated:
      return "PropagateSharding";
    case Phase::kLegalized:
      return "LegalizeRedistribute";
    case Phase::kLowered:
      return "LowerDistIR";
    case Phase::kRuntime:
      return "LowerCCL";
  }
  return "";
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

}  // namespace

const char* NameOf(Phase phase) { return kNames[static_cast<int>(phase)]; }

std::optional<Phase> PhaseOf(const ir::IRModule& mod) {
  if (const Least least = LeastAdvanced(mod); least.phase) return least.phase;
  if (ir::GetAttr(mod.attrs(), lower::kPartitionsAttr) != nullptr) return Phase::kRuntime;
  if (ir::GetAttr(mod.attrs(), lower::kSignatureAttr) != nullptr) return Phase::kLowered;
  return std::nullopt;
}

std::optional<Phase> RequirePhase(const ir::IRModule& mod, Phase needed, const std::string& pass) {
  const Least least = LeastAdvanced(mod);
  if (!least.phase || *least.phase >= needed) return least.phase;
  const Phase next = static_cast<Phase>(static_cast<int>(*least.phase) + 1);
  TVM_FFI_THROW(ValueError) << "`" << least.function << "` " << WhatIsLeft(*least.phase) << ": run "
                            << PassTo(next) << " before " << pass << ", which needs a "
                            << NameOf(needed)
                            << " module (distir_ext.lower runs all that is missing)";
}

}  // namespace phases
}  // namespace distir
