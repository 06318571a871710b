// Answers Python's queries on calls: factor rules, and copies of calls for tensors of other sizes.
#include <tvm/ffi/error.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ir/build.h"
#include "rules/call/stated_sizes.h"
#include "rules/factor/factor_rule.h"
#include "rules/linearity.h"
#include "rules/registry.h"
#include "rules/stated/user_rules.h"
#include "rules/tir/resized_kernels.h"
#include "rules/tir/rule.h"
#include "support/functions.h"

namespace distir::rules {

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
ffi::String Written(const FactorRule& rule) {
  const std::string sizes =
      Listed(rule.factors, [](const Factor& factor) { return std::to_string(factor.size); });
  const std::string kinds = Listed(
      rule.factors, [](const Factor& factor) { return '"' + std::string(KindOf(factor)) + '"'; });
  return "[" + Dimensions(rule.operands) + ", " + Dimensions(rule.results) + ", " + sizes + ", " +
         kinds + "]";
}

/*! \brief Gives the rule of each call in a module; that of a kernel is derived once. */
ffi::Function OfCallsIn(const ir::IRModule& mod) {
  auto kernels = std::make_shared<KernelTable>(mod.functions());
  return support::Typed([kernels](const ir::Call& call) {
    return Written(RuleOf(ViewCall(call, call.ty(), kernels.get())));
  });
}

/*! \brief The rule by which the kernel of an R.call_tir can be resized along a factor; null for any
 * other call. A rule that a user states has other factors. */
const KernelRule* ResizableKernel(const ir::Call& call, int64_t factor, KernelTable* kernels) {
  if (!ir::IsOp(call.op(), "relax.call_tir")) return nullptr;
  const KernelRule* kernel = kernels->Find(call);
  if (kernel == nullptr || !kernel->failure.empty() ||
      StatedRule(KernelName(call), kernel->function))
    return nullptr;
  const Factor& resized = kernel->factors.at(factor);
  return resized.may_be_uneven && resized.size >= 0 ? kernel : nullptr;
}

/*! \brief Gives, for a call, a factor of its rule and the size that this is to have, what is called
 * then, as its name and the function; nothing where that cannot be said. */
ffi::Function ResizedKernelsOf(const ir::IRModule& mod) {
  struct Kernels {
    KernelTable rules;
    ResizedKernels resized;
  };
  auto kernels = std::make_shared<Kernels>(
      Kernels{KernelTable(mod.functions()), ResizedKernels(mod.functions(), "cut")});
  return support::Typed([kernels](const ir::Call& call, int64_t factor, int64_t size) {
    ffi::Array<ffi::Any> found;
    const KernelRule* kernel = ResizableKernel(call, factor, &kernels->rules);
    if (kernel == nullptr) return found;
    ir::GlobalVar name;
    try {
      name = kernels->resized.Resized(ir::GlobalVar::Cast(call.args()[0]), *kernel,
                                      {{static_cast<int>(factor), size}});
    } catch (const ffi::Error&) {
      return found;  // it is not proven to stay within its buffers
    }
    const auto& made = kernels->resized.made();
    const auto function = std::find_if(
        made.begin(), made.end(), [&name](const auto& each) { return each.first.same_as(name); });
    if (function != made.end()) found = {name, function->second};
    return found;
  });
}

/*! \brief True if a call on the sum of values is the sum of calls on each; `summed` has a mark per
 * tensor operand. */
bool CommutesWithSum(const ir::Call& call, const ffi::Array<bool>& summed) {
  return CommutesWith(call, {summed.begin(), summed.end()}, mesh::Reduction::kSum);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.rules.OfCallsIn", OfCallsIn)
      .def("distir.rules.ResizedKernels", ResizedKernelsOf)
      .def("distir.rules.CommutesWithSum", CommutesWithSum)
      .def("distir.rules.ResizedCall", ResizedCall);
}

}  // namespace

}  // namespace distir::rules
