// What Python asks of calls: their factor rules, and the same calls on tensors of other sizes.
#include <tvm/ffi/reflection/registry.h>

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

ffi::Array<ffi::Any> Dimensions(const std::vector<TensorFactors>& tensors) {
  ffi::Array<ffi::Any> listed;
  for (const TensorFactors& tensor : tensors) {
    ffi::Array<ffi::Any> dims;
    for (const FactorList& dim : tensor) {
      ffi::Array<int64_t> factors;
      for (int factor : dim) factors.push_back(factor);
      dims.push_back(factors);
    }
    listed.push_back(dims);
  }
  return listed;
}

/*! \brief Factors of each dimension of each operand, and of each result; sizes of the factors, -1
 * for symbolic ones; and their kinds. */
ffi::Array<ffi::Any> OfCall(const ir::Call& call) {
  const FactorRule rule = RuleOf(ViewCall(call, call.ty()));
  ffi::Array<int64_t> sizes;
  ffi::Array<ffi::String> kinds;
  for (const Factor& factor : rule.factors) {
    sizes.push_back(factor.size);
    kinds.push_back(KindOf(factor));
  }
  return {Dimensions(rule.operands), Dimensions(rule.results), sizes, kinds};
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
