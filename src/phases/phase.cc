// Finds the phase of a module from the types and operators in its functions.
#include "phases/phase.h"

#include "dialect/mesh_table.h"
#include "dialect/operators/annotation.h"
#include "dialect/operators/copies_reduction.h"
#include "dialect/operators/manual.h"
#include "ir/module/well_formed.h"
#include "ir/rewriter.h"
#include "lower/signature.h"

namespace distir::phases {

namespace {

constexpr const char* kNames[] = {"annotated", "propagated", "legalized", "lowered", "runtime"};

/*! \brief The phase of a function with annotations or DTensors. */
std::optional<Phase> PhaseOfFunction(const ir::Function& function) {
  bool is_annotated = false, is_redistributed = false;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    ir::Call call = ir::BoundCall(binding);
    if (!call.defined() || !ir::Op::Is(call.op())) return;
    const bool is_propagated = dialect::HasDTensor(binding.var().ty());
    is_annotated = is_annotated || dialect::IsAnnotation(call) ||
                   (dialect::CrossesRegion(call) && !is_propagated);
    is_redistributed = is_redistributed || dialect::IsLegalizable(call);
  });
  if (is_annotated) return Phase::kAnnotated;
  if (!dialect::IsDistributed(function)) return std::nullopt;
  const bool is_legal = dialect::HasExplicitReductions(function) && !is_redistributed;
  return is_legal ? Phase::kLegalized : Phase::kPropagated;
}

}  // namespace

const char* NameOf(Phase phase) { return kNames[static_cast<int>(phase)]; }

LeastAdvancedFunction LeastAdvanced(const ir::IRModule& mod) {
  LeastAdvancedFunction least;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    ir::CheckTuples(gv, function);
    const std::optional<Phase> phase = PhaseOfFunction(function);
    if (phase && (!least.phase || *phase < *least.phase)) least = {gv.name(), phase};
  }
  return least;
}

std::optional<Phase> PhaseOf(const ir::IRModule& mod) {
  if (const LeastAdvancedFunction least = LeastAdvanced(mod); least.phase) return least.phase;
  if (ir::GetAttr(mod.attrs(), lower::kPartitionsAttr) != nullptr) return Phase::kRuntime;
  if (ir::GetAttr(mod.attrs(), lower::kSignatureAttr) != nullptr) return Phase::kLowered;
  return std::nullopt;
}

}  // namespace distir::phases
