// Splits a kernel into its reduction and its epilogue.
#include "unfuse/kernel_parts.h"

#include <algorithm>
#include <utility>

#include "rules/stated/user_rules.h"
#include "rules/tir/kernel_rule.h"
#include "unfuse/statements.h"

namespace distir::unfuse {

namespace {

int CountReductions(const rules::KernelRule& rule) {
  return static_cast<int>(
      std::count_if(rule.factors.begin(), rule.factors.end(),
                    [](const rules::Factor& f) { return f.Is<rules::ReductionFactor>(); }));
}

class KernelSplitter {
 public:
  KernelSplitter(const ir::PrimFunc& kernel, const rules::KernelRule& rule)
      : kernel_(kernel),
        rule_(rule),
        buffers_(ir::SBlockRealize::Cast(kernel.body()).block().alloc_buffers()) {}

  /*! \param first Index of the first statement behind the last reduction. */
  std::optional<KernelParts> Run(const std::vector<ir::Stmt>& all, size_t first) {
    if (!ReadParams()) return std::nullopt;
    // As much as commutes stays with the reduction: it may be in a smaller type then.
    for (size_t at = all.size() - 1; at >= first; --at) {
      if (auto parts = CutAt(all, at)) return parts;
    }
    return std::nullopt;
  }

 private:
  /*! \brief Operands, tensors and numbers, then one result. */
  bool ReadParams() {
    for (size_t i = 0; i < kernel_.params().size(); ++i) {
      if (result_.defined()) return false;
      (rule_.is_written[i] ? result_ : operands_.emplace_back()) = kernel_.params()[i];
    }
    return result_.defined();
  }

  std::optional<KernelParts> CutAt(const std::vector<ir::Stmt>& all, size_t at) {
    Section before, behind;
    for (size_t i = 0; i < all.size(); ++i) (i < at ? before : behind).Add(all[i]);
    if (before.Uses(result_)) return std::nullopt;
    ir::Var between;
    ffi::Array<ir::Var> of_before, of_behind;
    for (const ir::Var& buffer : buffers_) {
      if (before.Uses(buffer) && behind.Uses(buffer)) {
        if (between.defined()) return std::nullopt;
        between = buffer;
      } else {
        (before.Uses(buffer) ? of_before : of_behind).push_back(buffer);
      }
    }
    if (!between.defined() || !ir::BufferType::Cast(between.ty()).IsCompact()) return std::nullopt;
    KernelParts parts;
    parts.dtype = ir::BufferType::Cast(between.ty()).element_type();
    auto shape = SizesOf(between, kernel_);
    if (!shape) return std::nullopt;
    parts.shape = std::move(*shape);

    ffi::Array<ir::Var> params_before, params_behind{between};
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (before.Uses(operands_[i])) {
        params_before.push_back(operands_[i]);
        parts.of_reduction.push_back(i);
      }
      if (behind.Uses(operands_[i])) {
        params_behind.push_back(operands_[i]);
        parts.of_epilogue.push_back(i);
      }
    }
    params_before.push_back(between);
    params_behind.push_back(result_);
    if (!StatesSizes(params_before, before, kernel_) ||
        !StatesSizes(params_behind, behind, kernel_))
      return std::nullopt;
    parts.reduction = MakeKernel(kernel_, params_before, of_before, before);
    parts.epilogue = MakeKernel(kernel_, params_behind, of_behind, behind);
    if (!Pays(parts)) return std::nullopt;
    return parts;
  }

  /*! \brief True if more can be reduced over shards, and all of the rest goes by element. */
  bool Pays(const KernelParts& parts) const {
    const rules::KernelRule reduction = rules::DeriveKernelRule(parts.reduction);
    const rules::KernelRule epilogue = rules::DeriveKernelRule(parts.epilogue);
    if (!reduction.failure.empty() || !epilogue.failure.empty() || epilogue.is_written[0] ||
        CountReductions(reduction) <= CountReductions(rule_))
      return false;
    const auto& params = parts.epilogue.params();
    const rules::TensorFactors& given = epilogue.buffers.at(params[0].get());
    const rules::TensorFactors& made = epilogue.buffers.at(params[params.size() - 1].get());
    for (const rules::FactorList& factors : given) {
      for (int factor : factors) {
        if (!epilogue.factors[factor].Is<rules::ParallelFactor>()) return false;
      }
    }
    return given == made;
  }

  const ir::PrimFunc& kernel_;
  const rules::KernelRule& rule_;
  const ffi::Array<ir::Var> buffers_;  // those inside
  std::vector<ir::Var> operands_;
  ir::Var result_;
};

}  // namespace

std::optional<KernelParts> SplitKernel(const std::string& name, const ir::PrimFunc& kernel) {
  const std::vector<ir::Stmt> all = StatementsOf(kernel);
  size_t first = all.size();  // behind the last reduction
  while (first > 0 && !HasReduction(all[first - 1])) --first;
  if (first == 0 || first == all.size()) return std::nullopt;
  // A user who states a rule knows what the kernel is to be.
  if (rules::StatedRule(name, kernel)) return std::nullopt;
  const rules::KernelRule rule = rules::DeriveKernelRule(kernel);
  if (!rule.failure.empty()) return std::nullopt;
  return KernelSplitter(kernel, rule).Run(all, first);
}

}  // namespace distir::unfuse
