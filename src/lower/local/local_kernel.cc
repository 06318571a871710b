// Copies TIR kernels with the extents of one worker's shards.
#include "lower/local/local_kernel.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <unordered_set>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "lower/local/stated_cut.h"
#include "rules/call/infer_type.h"
#include "rules/stated/user_rules.h"
#include "rules/tir/edit.h"
#include "support/error.h"

namespace distir::lower {

namespace {

class KernelLocalizer {
 public:
  KernelLocalizer(const std::string& what, const rules::KernelRule& kernel,
                  const std::vector<int64_t>& shards)
      : what_(what), kernel_(kernel), shards_(shards) {}

  ir::PrimFunc Run() {
    SplitSymbols();
    for (const ir::Var& param : kernel_.function.params()) {
      if (ir::BufferType::Is(param.ty())) SplitBuffer(param);
    }
    for (const ir::Var& buffer : kernel_.intermediates) SplitBuffer(buffer);
    for (const auto& [variable, factors] : kernel_.iterators) {
      int64_t parts = PartsOf(factors);
      if (parts > 1) edit_.extents[variable] = LocalSize(kernel_.extents.at(variable), parts);
    }
    // A rule that was stated is of the global sizes.
    ir::Node attrs = ir::WithAttr(kernel_.function.attrs(), "global_symbol", ffi::Any());
    attrs = ir::WithAttr(attrs, rules::kRuleAttribute, ffi::Any());
    return rules::EditChecked(what_, kernel_.function, edit_, attrs);
  }

 private:
  int64_t PartsOf(const rules::FactorList& factors) const {
    int64_t parts = 1;
    for (int factor : factors) parts *= shards_[factor];
    return parts;
  }

  // Sizes that only buffers define become multiples of what a worker sees of them.
  void SplitSymbols() {
    std::unordered_set<const ffi::Object*> given;
    std::vector<std::pair<ir::Var, int64_t>> seen;
    for (const ir::Var& param : kernel_.function.params()) {
      auto type = ir::BufferType::Cast(param.ty());
      if (!type.defined()) {
        given.insert(param.get());
        continue;
      }
      const rules::TensorFactors& factors = kernel_.buffers.at(param.get());
      for (size_t d = 0; d < factors.size(); ++d) {
        if (auto size = ir::Var::Cast(type.shape()[d]); size.defined())
          seen.emplace_back(size, PartsOf(factors[d]));
      }
    }
    std::map<const ffi::Object*, int64_t> most;
    for (const auto& [size, parts] : seen) {
      int64_t& value = most.try_emplace(size.get(), 1).first->second;
      value = std::max(value, parts);
    }
    for (const auto& [size, parts] : seen) {
      int64_t all = most.at(size.get());
      if (given.count(size.get()) > 0 || all == 1 || edit_.variables.count(size.get()) > 0)
        continue;
      for (const auto& [other, other_parts] : seen) {
        if (!other.same_as(size) || all % other_parts == 0) continue;
        TVM_FFI_THROW(ValueError) << what_ << ": size `" << size.name() << "` is in " << all
                                  << " shards in one buffer and " << other_parts
                                  << " in another; redistribute one of them";
      }
      ir::Var local = ir::MakeVar(size.name(), size.ty(), false);
      edit_.variables.emplace(size.get(), ir::MultiplyExtent(local, all));
    }
  }

  ir::Expr LocalSize(const ir::Expr& size, int64_t parts) const {
    ir::Expr substituted = ir::SubstituteVars(size, [this](const ir::Var& var) {
      auto it = edit_.variables.find(var.get());
      return it == edit_.variables.end() ? ir::Expr() : it->second;
    });
    return ir::DivideExtent(substituted, parts);
  }

  void SplitBuffer(const ir::Var& buffer) {
    const rules::TensorFactors& factors = kernel_.buffers.at(buffer.get());
    ffi::Array<ir::Expr> shape;
    bool changed = false;
    std::vector<bool> is_cut;
    auto type = ir::BufferType::Cast(buffer.ty());
    for (size_t d = 0; d < factors.size(); ++d) {
      int64_t parts = PartsOf(factors[d]);
      shape.push_back(LocalSize(type.shape()[d], parts));
      changed = changed || !shape.back().same_as(type.shape()[d]);
      is_cut.push_back(parts > 1);
    }
    if (changed) edit_.Reshape(buffer, shape, std::move(is_cut));
  }

  const std::string& what_;
  const rules::KernelRule& kernel_;
  const std::vector<int64_t>& shards_;
  ir::KernelEdit edit_;
};

}  // namespace

ir::PrimFunc MakeLocalKernel(const std::string& what, const rules::KernelRule& kernel,
                             const std::vector<int64_t>& shards) {
  for (size_t f = 0; f < shards.size(); ++f) {
    const int64_t size = kernel.factors[f].size;
    DISTIR_REQUIRE(size < 0 || size % shards[f] == 0, ValueError)
        << what << ": a loop over " << size << " does not divide into " << shards[f] << " shards";
  }
  return KernelLocalizer(what, kernel, shards).Run();
}

namespace {

/*! \brief Number of parts of each dimension of a kernel's tensor parameters. */
PartsOfDims PartsOf(const ir::Call& call, const rules::FactorRule& rule,
                    const std::vector<int64_t>& shards) {
  PartsOfDims parts;
  auto add = [&](const rules::TensorFactors& tensor) {
    parts.emplace_back();
    for (const rules::FactorList& dim : tensor) {
      int64_t product = 1;
      for (int factor : dim) product *= shards[factor];
      parts.back().push_back(product);
    }
  };
  for (const rules::TensorFactors& tensor : rule.operands) add(tensor);
  std::vector<size_t> params =
      rules::ParamsOfResults(call, rule.operands.size(), rule.results.size());
  for (size_t r = 0; r < rule.results.size(); ++r) {
    if (params[r] >= rule.operands.size()) add(rule.results[r]);
  }
  return parts;
}

}  // namespace

void LocalKernels::CheckTypes(const ir::Call& call, const rules::Decision& decision) {
  const mesh::Mesh& mesh = meshes_.Root(decision.call.root);
  auto check = [&](const rules::PlacedTensors& tensors, const std::vector<mesh::Sharding>& wanted,
                   const char* what) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const mesh::Sharding* known = tensors.shardings[i];
      bool agrees = known == nullptr ? wanted[i].IsReplicated()
                                     : mesh::Canonical(wanted[i]) == mesh::Canonical(*known);
      DISTIR_REQUIRE(agrees, ValueError)
          << "kernel `" << rules::KernelName(call) << "`: " << what << " " << i << " is placed as "
          << (known == nullptr ? "a plain tensor" : mesh::ToString(*known, mesh))
          << ", but its index maps need " << mesh::ToString(wanted[i], mesh)
          << "; redistribute it, or let PropagateSharding place the call";
    }
  };
  check(rules::PlacedArguments(call, &meshes_), decision.call.sharding.operands, "operand");
  check(rules::PlacedResults(call, &meshes_), decision.call.sharding.results, "result");
}

ir::Expr LocalKernels::Localize(const ir::Call& call) {
  const ir::Expr& callee = call.args()[0];
  const rules::Decision decision = decisions_.OfKernel(call);
  CheckTypes(call, decision);
  std::vector<int64_t> shards;
  for (const mesh::AxisList& axes : decision.call.sharding.factors)
    shards.push_back(mesh::NumShards(axes));
  bool is_whole =
      std::all_of(shards.begin(), shards.end(), [](int64_t count) { return count == 1; });
  if (is_whole) return callee;
  const rules::KernelRule& kernel = *table_.Find(call);
  const std::string name = rules::KernelName(call);
  std::string what = "kernel `" + name + "` by its rule ";
  if (auto stated = rules::StatedRule(name, kernel.function)) {
    what += "\"" + stated->text + "\"";
    shards = CutByStatedRule(what, kernel, PartsOf(call, decision.rule, shards));
    if (shards.empty()) return callee;
  } else {
    what += rules::Describe(kernel);
  }
  auto key = std::make_pair(static_cast<const ffi::Object*>(kernel.function.get()), shards);
  auto found = made_.find(key);
  if (found == made_.end()) {
    ir::PrimFunc local = MakeLocalKernel(what, kernel, shards);
    found = made_.emplace(key, add_(name + "_local", local)).first;
  }
  return found->second;
}

}  // namespace distir::lower
