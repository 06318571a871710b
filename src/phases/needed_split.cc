// Runs SplitFused, and keeps only the splits that shardings need.
#include "phases/needed_split.h"

#include <tvm/ffi/error.h>

#include <set>
#include <utility>
#include <vector>

#include "dialect/placement.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "propagation/pass.h"
#include "unfuse/pass.h"

namespace distir::phases {

namespace ffi = tvm::ffi;

namespace {

std::vector<ir::Binding> BindingsOf(const ir::Function& function) {
  std::vector<ir::Binding> bindings;
  ir::VisitBindings(function.body(), [&](const ir::Binding& each) { bindings.push_back(each); });
  return bindings;
}

/*! \brief The mesh axes that shard tensors of a type, by mesh and number. */
using Axes = std::set<std::pair<const ffi::Object*, int>>;

void AddAxes(const ir::Type& type, Axes* axes) {
  std::vector<ir::DTensorType> tensors;
  dialect::CollectDTensorTypes(type, &tensors);
  for (const ir::DTensorType& each : tensors) {
    if (!each.defined()) continue;
    const std::vector<int> dims = dialect::PlacementDims(each.placement());
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      if (dims[axis] >= 0) axes->emplace(each.device_mesh().get(), static_cast<int>(axis));
    }
  }
}

/*! \brief True if the result of a binding lacks an axis of an operand: it may be partial. */
bool MayReduce(const ir::Binding& binding) {
  const ir::VarBinding bound = ir::VarBinding::Cast(binding);
  if (!bound.defined() || ir::If::Is(bound.value())) return true;
  const ir::Call call = ir::BoundCall(binding);
  if (!call.defined()) return false;
  Axes given, made;
  for (const ir::Expr& arg : call.args()) AddAxes(arg.ty(), &given);
  AddAxes(binding.var().ty(), &made);
  for (const auto& axis : given) {
    if (made.count(axis) == 0) return true;
  }
  return false;
}

/*! \brief True if two functions place all values alike, and differ in kernels before any reduction
 * at most. */
bool AreAlike(const ir::Function& whole, const ir::Function& split) {
  const std::vector<ir::Binding> left = BindingsOf(whole), right = BindingsOf(split);
  if (left.size() != right.size() || !dialect::SamePlacements(whole.ret_ty(), split.ret_ty()))
    return false;
  for (size_t i = 0; i < whole.params().size(); ++i) {
    if (!dialect::SamePlacements(whole.params()[i].ty(), split.params()[i].ty())) return false;
  }
  bool may_reduce = false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!dialect::SamePlacements(left[i].var().ty(), right[i].var().ty())) return false;
    const ir::Call a = ir::BoundCall(left[i]), b = ir::BoundCall(right[i]);
    if (a.defined() != b.defined()) return false;
    if (a.defined()) {
      if (ir::IsOp(a.op(), "relax.dist.redistribute") ||
          ir::IsOp(b.op(), "relax.dist.redistribute"))
        return false;
      if (!a.op().same_as(b.op()) && may_reduce) return false;
    }
    may_reduce = may_reduce || MayReduce(left[i]) || MayReduce(right[i]);
  }
  return true;
}

bool AreAlike(const ir::IRModule& whole, const ir::IRModule& split) {
  for (const auto& [name, base] : ir::OrderedFunctions(whole)) {
    const ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    ir::Function other;
    for (const auto& [gv, candidate] : split.functions()) {
      if (gv.name() == name.name()) other = ir::Function::Cast(candidate);
    }
    if (!other.defined() || !AreAlike(function, other)) return false;
  }
  return true;
}

ir::IRModule Propagated(const ir::IRModule& mod) {
  return ir::RunReported("PropagateSharding", mod, propagation::PropagateSharding,
                         ir::ReportOf::kNone);
}

/*! \brief True if functions have as many bindings: each kernel became one operator, if any. */
bool HaveAsManyBindings(const ir::IRModule& mod, const ir::IRModule& split) {
  size_t before = 0, behind = 0;
  for (const auto& [gv, base] : mod.functions()) {
    if (auto function = ir::Function::Cast(base); function.defined())
      before += BindingsOf(function).size();
  }
  for (const auto& [gv, base] : split.functions()) {
    if (auto function = ir::Function::Cast(base); function.defined())
      behind += BindingsOf(function).size();
  }
  return before == behind;
}

}  // namespace

ir::IRModule SplitWhereNeeded(const ir::IRModule& mod) {
  const ir::IRModule split = unfuse::SplitFused(mod);
  if (split.same_as(mod) || !HaveAsManyBindings(mod, split)) return split;
  const ir::IRModule of_split = Propagated(split);
  try {
    return AreAlike(Propagated(mod), of_split) ? mod : split;
  } catch (const ffi::Error&) {
    return split;  // of what is not split, something cannot be sharded
  }
}

}  // namespace distir::phases
