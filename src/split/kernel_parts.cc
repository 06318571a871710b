#include "split/kernel_parts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/stated/user_rules.h"
#include "rules/tir/kernel_rule.h"

namespace distir {
namespace split {

namespace {

using Vars = std::set<const ffi::Object*>;

bool HasReduction(const ir::Stmt& stmt) {
  if (auto loop = ir::For::Cast(stmt); loop.defined()) return HasReduction(loop.body());
  if (auto seq = ir::SeqStmt::Cast(stmt); seq.defined())
    return std::any_of(seq.seq().begin(), seq.seq().end(), HasReduction);
  if (auto branch = ir::IfThenElse::Cast(stmt); branch.defined())
    return HasReduction(branch.then_case()) ||
           (branch.else_case().defined() && HasReduction(branch.else_case()));
  auto realize = ir::SBlockRealize::Cast(stmt);
  if (!realize.defined()) return false;
  const auto& iterators = realize.block().iter_vars();
  return HasReduction(realize.block().body()) ||
         std::any_of(iterators.begin(), iterators.end(), [](const ir::IterVar& each) {
           return each.kind() == ir::IteratorKind::kReduction;
         });
}

int CountReductions(const rules::KernelRule& rule) {
  return static_cast<int>(
      std::count_if(rule.factors.begin(), rule.factors.end(),
                    [](const rules::Factor& f) { return f.Is<rules::ReductionFactor>(); }));
}

/*! \brief Some of the statements of a kernel. */
struct Section {
  std::vector<ir::Stmt> statements;
  Vars uses;  // buffers and sizes

  void Add(const ir::Stmt& stmt) {
    statements.push_back(stmt);
    for (const ir::Var& var : ir::UsedVars(stmt)) uses.insert(var.get());
  }
  bool Uses(const ir::Var& var) const { return uses.count(var.get()) > 0; }
};

class KernelSplitter {
 public:
  KernelSplitter(const ir::PrimFunc& kernel, const rules::KernelRule& rule)
      : kernel_(kernel),
        rule_(rule),
        buffers_(ir::SBlockRealize::Cast(kernel.body()).block().alloc_buffers()) {}

  /*! \param first What is behind the last reduction. */
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
    parts.num_operands = operands_.size();
    parts.dtype = ir::BufferType::Cast(between.ty()).element_type();
    if (!ReadShape(between, &parts)) return std::nullopt;

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
    if (!States(params_before, before) || !States(params_behind, behind)) return std::nullopt;
    parts.reduction = Make(params_before, of_before, before.statements);
    parts.epilogue = Make(params_behind, of_behind, behind.statements);
    if (!Pays(parts)) return std::nullopt;
    parts.reduction = ir::RenewDefinitions(parts.reduction);
    parts.epilogue = ir::RenewDefinitions(parts.epilogue);
    return parts;
  }

  /*! \brief Where a caller sees the sizes of a buffer. */
  bool ReadShape(const ir::Var& buffer, KernelParts* parts) const {
    std::vector<ir::Var> tensors = operands_;
    tensors.push_back(result_);
    for (const ir::Expr& size : ir::BufferType::Cast(buffer.ty()).shape()) {
      const size_t known = parts->shape.size();
      for (size_t t = 0; t < tensors.size() && parts->shape.size() == known; ++t) {
        if (!ir::BufferType::Is(tensors[t].ty())) continue;
        const ffi::Array<ir::Expr>& shape = ir::BufferType::Cast(tensors[t].ty()).shape();
        for (size_t d = 0; d < shape.size() && parts->shape.size() == known; ++d) {
          if (ir::SameDim(shape[d], size)) parts->shape.push_back({t, d});
        }
      }
      if (parts->shape.size() == known) return false;
    }
    return true;
  }

  /*! \brief Whether the sizes that a section uses are sizes of its parameters. */
  bool States(const ffi::Array<ir::Var>& params, const Section& section) const {
    Vars stated, all;
    const auto read = [](const ir::Var& param, Vars* sizes) {
      if (!ir::BufferType::Is(param.ty())) return void(sizes->insert(param.get()));
      for (const ir::Expr& size : ir::BufferType::Cast(param.ty()).shape()) {
        if (ir::Var::Is(size)) sizes->insert(size.get());
      }
    };
    for (const ir::Var& param : params) read(param, &stated);
    for (const ir::Var& param : kernel_.params()) read(param, &all);
    return std::all_of(all.begin(), all.end(), [&](const ffi::Object* size) {
      return section.uses.count(size) == 0 || stated.count(size) > 0;
    });
  }

  ir::PrimFunc Make(const ffi::Array<ir::Var>& params, const ffi::Array<ir::Var>& buffers,
                    const std::vector<ir::Stmt>& statements) const {
    ir::Node attrs = ir::WithAttr(kernel_.attrs(), "global_symbol", ffi::Any());
    attrs = ir::WithAttr(attrs, "op_pattern", ffi::Any());
    return ir::MakeSection(kernel_, params, buffers, statements, attrs);
  }

  /*! \brief Whether more can be reduced over shards, and all of the rest goes by element. */
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

/*! \brief The statements of a kernel of one block around all; empty for any other. */
std::vector<ir::Stmt> StatementsOf(const ir::PrimFunc& kernel) {
  auto root = ir::SBlockRealize::Cast(kernel.body());
  if (!root.defined() || !root.block().iter_vars().empty() || root.block().init().defined() ||
      !root.block().match_buffers().empty())
    return {};
  auto body = ir::SeqStmt::Cast(root.block().body());
  if (!body.defined()) return {};
  return {body.seq().begin(), body.seq().end()};
}

}  // namespace

std::optional<KernelParts> SplitKernel(const std::string& name, const ir::PrimFunc& kernel) {
  const std::vector<ir::Stmt> all = StatementsOf(kernel);
  size_t first = all.size();  // behind the last reduction
  while (first > 0 && !HasReduction(all[first - 1])) --first;
  if (first == 0 || first == all.size()) return std::nullopt;
  // Who states a rule knows what the kernel is to be.
  if (rules::StatedRule(name, kernel)) return std::nullopt;
  const rules::KernelRule rule = rules::DeriveKernelRule(kernel);
  if (!rule.failure.empty()) return std::nullopt;
  return KernelSplitter(kernel, rule).Run(all, first);
}

}  // namespace split
}  // namespace distir
