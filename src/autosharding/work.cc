// Looks up the counted floating-point operations and bytes of each call.
#include "autosharding/work.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <vector>

#include "dialect/operators/annotation.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir::autosharding {

namespace {

std::vector<ir::Binding> BindingsOf(const ir::Function& function) {
  std::vector<ir::Binding> bindings;
  ir::VisitBindings(function.body(),
                    [&](const ir::Binding& binding) { bindings.push_back(binding); });
  return bindings;
}

/*! \brief True if an operator that only moves elements gives those of one dimension to another, as
 * a transpose of a column does, which TVM makes a view. */
bool MovesNothing(const ir::Call& call, const rules::Operator& record) {
  const auto shape_of = [](const ir::Type& type) {
    std::vector<int64_t> sizes;
    const ir::TensorType tensor = ir::TensorType::Cast(type);
    if (!tensor.defined() || !ir::ShapeExpr::Is(tensor.shape())) return sizes;
    for (const ir::Expr& size : ir::ShapeOf(tensor)) sizes.push_back(ir::StaticDim(size));
    return sizes;
  };
  if (record.commutation.mean != rules::In::kAny || call.args().empty()) return false;
  std::vector<int64_t> from = shape_of(call.args()[0].ty()), to = shape_of(call.ty());
  if (from == to || std::count(to.begin(), to.end(), 1) + 1 < static_cast<int64_t>(to.size()))
    return false;
  std::sort(from.begin(), from.end());
  std::sort(to.begin(), to.end());
  return from == to;
}

}  // namespace

Works::Works(const ir::IRModule& mod, const ir::IRModule& outlined,
             const std::unordered_map<std::string, Work>& counts, const DeviceLimits& limits) {
  stages::WorkEstimate estimate(mod, limits.speed);
  std::unordered_map<std::string, ir::Function> outlined_functions;
  for (const auto& [name, base] : outlined.functions()) {
    if (auto function = ir::Function::Cast(base); function.defined())
      outlined_functions.emplace(name.name(), function);
  }
  for (const auto& [name, base] : mod.functions()) {
    auto function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    const std::vector<ir::Binding> bindings = BindingsOf(function);
    const std::vector<ir::Binding> others = BindingsOf(outlined_functions.at(name.name()));
    TVM_FFI_ICHECK_EQ(bindings.size(), others.size()) << "an outlined function has other bindings";
    for (size_t i = 0; i < bindings.size(); ++i) {
      const ir::Call call = ir::BoundCall(bindings[i]);
      if (!call.defined()) continue;
      const bool calls_function =
          ir::GlobalVar::Is(call.op()) &&
          ir::Function::Is(mod.functions().at(ir::GlobalVar::Cast(call.op())));
      if (calls_function || dialect::IsAnnotation(call)) continue;
      const auto callee = ir::GlobalVar::Cast(ir::BoundCall(others[i]).op());
      auto counted = callee.defined() ? counts.find(callee.name()) : counts.end();
      Work& work = works_[call.get()];
      if (counted != counts.end()) {
        work = counted->second;
      } else {
        work.kernels[0].computing = estimate.SecondsOf(bindings[i]);
      }
      const rules::Operator* record = rules::FindOperator(call.op());
      work.is_view = record != nullptr && (record->is_view || MovesNothing(call, *record));
    }
  }
}

Work Works::Of(const ffi::Object* call) const {
  auto found = works_.find(call);
  return found == works_.end() ? Work() : found->second;
}

}  // namespace distir::autosharding
