// What Python asks of calls: their factor rules, and the same calls on tensors of other sizes.
#include <tvm/ffi/reflection/registry.h>

#include <string>
#include <vector>

#include "ir/build.h"
#include "rules/call/stated_sizes.h"
#include "rules/factor/factor_rule.h"
#include "rules/linearity.h"
#include "rules/registry.h"

namespace distir {
namespace rules {

namespace {

const char* KindOf(const Factor& factor) {
  if (factor.Is<ParallelFactor>()) return "parallel";
  if (factor.Is<ReplicatedFactor>()) return "replicated";
  return factor.decomposed() != nullptr ? "decomposed" : "reduction";
}

template <typename Items, typename Write>
std::string Listed(const Items& items, const Write& write) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "[" : ", ") + write(item);
  return text.empty() ? "[]" : text + "]";
}

std::string Dimensions(const std::vector<TensorFactors>& tensors) {
  return Listed(tensors, [](const TensorFactors& tensor) {
    return Listed(tensor, [](const FactorList& dim) {
      return Listed(dim, [](int factor) { return std::to_string(factor); });
    });
  });
}

/*! \brief Factors of each dimension of each operand, and of each result; sizes of the factors, -1
 * for symbolic ones; and their kinds. As JSON, which is read faster than containers of TVM. */
ffi::String OfCall(const ir::Call& call) {
  const FactorRule rule = RuleOf(ViewCall(call, call.ty()));
  const std::string sizes =
      Listed(rule.factors, [](const Factor& factor) { return std::to_string(factor.size); });
  const std::string kinds = Listed(
      rule.factors, [](const Factor& factor) { return '"' + std::string(KindOf(factor)) + '"'; });
  return "[" + Dimensions(rule.operands) + ", " + Dimensions(rule.results) + ", " + sizes + ", " +
         kinds + "]";
}

/*! \brief Whether a call on the sum of values is the sum of calls on each; `summed` has a mark per
 * tensor operand. */
bool CommutesWithSum(const ir::Call& call, const ffi::Array<bool>& summed) {
  return CommutesWith(call, {summed.begin(), summed.end()}, mesh::Reduction::kSum);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("distir.rules.OfCall", OfCall)
      .def("distir.rules.CommutesWithSum", CommutesWithSum)
      .def("distir.rules.ResizedCall", ResizedCall);
}

}  // namespace

}  // namespace rules
}  // namespace distir
