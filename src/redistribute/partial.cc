#include "redistribute/partial.h"

#include <algorithm>

#include "rules/infer_type.h"
#include "rules/registry.h"

namespace distir {
namespace redistribute {

std::optional<PartialValue> PartialResult(const ir::Call& call, op::MeshTable* meshes,
                                          rules::KernelTable* kernels) {
  if (!rules::HasRule(call)) return std::nullopt;
  bool any_dtensor = false;
  for (const ir::Expr& arg : call.args()) any_dtensor = any_dtensor || op::HasDTensor(arg.ty());
  if (!any_dtensor) return std::nullopt;
  ir::Type global_ty = rules::StripDistribution(call.ty());
  rules::FactorRule rule = rules::RuleOf(rules::ViewCall(call, global_ty, kernels));
  bool can_be_partial = std::any_of(
      rule.factors.begin(), rule.factors.end(),
      [](const rules::Factor& factor) { return factor.kind == rules::FactorKind::kReduction; });
  if (!can_be_partial) return std::nullopt;
  rules::InferredCall inferred = rules::InferCall(call, global_ty, rule, meshes);
  if (inferred.sharding.partial.empty()) return std::nullopt;
  PartialValue value{inferred.root, inferred.sharding.results[0]};
  value.sharding.partial = inferred.sharding.partial;
  value.sharding.reduction = inferred.sharding.reduction;
  return value;
}

}  // namespace redistribute
}  // namespace distir
