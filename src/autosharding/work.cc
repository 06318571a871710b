// Looks up the counted floating-point operations and bytes of each call.
#include "autosharding/work.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <vector>

#include "dialect/operators/annotation.h"
#include "ir/build.h"
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

/*! \brief True for a transpose of one dimension and others of size one, which TVM makes a view. */
bool MovesNothing(const ir::Call& call) {
  const ir::TensorType type = ir::TensorType::Cast(call.ty());
  if (!type.defined() || !ir::ShapeExpr::Is(type.shape())) return false;
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type);
  return ir::CalleeName(call) == "relax.permute_dims" &&
         std::count_if(shape.begin(), shape.end(),
                       [](const ir::Expr& size) { return ir::StaticDim(size) != 1; }) <= 1;
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
      work.is_view = (record != nullptr && record->is_view) || MovesNothing(call);
    }
  }
}

Work Works::Of(const ffi::Object* call) const {
  auto found = works_.find(call);
  return found == works_.end() ? Work() : found->second;
}

}  // namespace distir::autosharding
