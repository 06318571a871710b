// Finds symbolic sizes that cannot be padded, with the reason for each.
#include "padding/dividing_sizes.h"

#include <algorithm>
#include <vector>

#include "dialect/operators/segment_exchange.h"
#include "dialect/operators/token_dispatch.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/rewriter.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "padding/cast_sizes.h"
#include "padding/extents.h"
#include "rules/call/infer_type.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir::padding {

namespace {

/*! \brief Calls `visit` with every dimension of a type that is sharded, and its shards. */
template <typename OnDim>
void ForShardedDims(const ir::Type& type, dialect::MeshTable* meshes, const OnDim& visit) {
  ir::ForEachLeaf(type, [&](const ir::Type& leaf) {
    auto tensor = ir::DTensorType::Cast(leaf);
    if (!tensor.defined() || !ir::HasKnownShape(tensor.tensor_ty())) return;
    const mesh::Sharding& sharding = meshes->ShardingOf(tensor);
    const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(tensor.tensor_ty());
    for (size_t d = 0; d < shape.size(); ++d) {
      if (!sharding.dims[d].empty()) visit(shape[d], mesh::NumShards(sharding.dims[d]));
    }
  });
}

}  // namespace

bool MayPad(const rules::FactorRule& rule, const rules::FactorList& dim, int64_t shards) {
  if (dim.empty()) return false;
  const rules::Factor& major = rule.factors[dim[0]];
  return major.may_be_uneven && !major.moves() &&
         (dim.size() == 1 || major.size < 0 || shards <= major.size);
}

DividingSizes::DividingSizes(const ir::IRModule& mod, dialect::MeshTable* meshes,
                             rules::KernelTable* kernels)
    : functions_(mod.functions()), meshes_(*meshes), kernels_(*kernels) {
  const ir::CallGraph calls(mod);
  std::vector<ir::Function> functions;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    functions.push_back(function);
    if (!calls[*calls.Find(gv)].is_value) continue;
    const std::string reason = "`" + gv.name() + "`, which is used as a value";
    for (const ir::Var& param : function.params()) AddAll(param.ty(), reason);
    AddAll(function.body().body().ty(), reason);
  }
  // Callers need what their callees need: repeat until nothing is added.
  for (size_t before = reasons_.size() + 1; before != reasons_.size();) {
    before = reasons_.size();
    for (const ir::Function& function : functions) Visit(function);
  }
}

bool DividingSizes::Has(const ir::Expr& dim) const { return ReasonOf(dim) != nullptr; }

const std::string* DividingSizes::ReasonOf(const ir::Expr& dim) const {
  const std::string* found = nullptr;
  if (!reasons_.empty()) {
    ir::VisitVars(dim, [&](const ir::Var& var) {
      if (found == nullptr) found = Reason(var);
    });
  }
  return found;
}

const std::string* DividingSizes::Reason(const ir::Var& size) const {
  auto found = reasons_.find(size.get());
  return found == reasons_.end() ? nullptr : &found->second;
}

ir::Function DividingSizes::Noted(const ir::Function& function) const {
  ffi::Map<ffi::String, ffi::Any> reasons;
  for (const ir::Var& param : function.params()) {
    ir::MapDims(param.ty(), [&](const ir::Expr& dim) {
      ir::VisitVars(dim, [&](const ir::Var& size) {
        if (const std::string* reason = Reason(size))
          reasons.Set(size.name(), ffi::String(*reason));
      });
      return dim;
    });
  }
  if (reasons.empty()) return function;
  return ir::MakeFunction(function.params(), function.body(), function.ret_ty(), function.is_pure(),
                          ir::WithAttr(function.attrs(), kDividingAttr, reasons));
}

void DividingSizes::Add(const ir::Expr& dim, int64_t shards, const std::string& reason) {
  if (ir::AlwaysDivides(dim, shards)) return;
  ir::VisitVars(dim, [&](const ir::Var& var) { reasons_.emplace(var.get(), reason); });
}

void DividingSizes::AddAll(const ir::Type& type, const std::string& reason) {
  ForShardedDims(type, &meshes_,
                 [&](const ir::Expr& dim, int64_t shards) { Add(dim, shards, reason); });
}

void DividingSizes::Visit(const ir::Function& function) {
  ir::VisitBindings(function.body(), [this](const ir::Binding& binding) {
    if (auto cast = ir::MatchCast::Cast(binding); cast.defined()) return VisitMatchCast(cast);
    if (const ir::Call call = ir::BoundCall(binding); call.defined())
      VisitCall(binding.var(), call);
  });
  VisitResult(function);
}

void DividingSizes::VisitCall(const ir::Var& var, const ir::Call& call) {
  if (ir::IsOp(call.op(), "relax.dist.redistribute")) return;
  if (dialect::IsSegmentExchange(call.op())) return;
  if (dialect::IsOfTokens(call.op())) {
    for (const ir::Expr& arg : call.args()) AddAll(arg.ty(), ir::CalleeName(call));
    return AddAll(var.ty(), ir::CalleeName(call));
  }
  if (auto callee = ir::GlobalVar::Cast(call.op()); callee.defined()) {
    auto found = functions_.find(callee);
    const ir::Function function =
        found == functions_.end() ? ir::Function() : ir::Function::Cast((*found).second);
    if (function.defined()) return VisitFunctionCall(call, function);
  }
  VisitOperator(var, call);
}

void DividingSizes::VisitOperator(const ir::Var& var, const ir::Call& call) {
  bool any = false;
  auto find = [&](const ir::Type& type) {
    ForShardedDims(type, &meshes_, [&](const ir::Expr& dim, int64_t shards) {
      any = any || (ir::StaticDim(dim) < 0 && !ir::AlwaysDivides(dim, shards));
    });
  };
  for (const ir::Expr& arg : call.args()) find(arg.ty());
  find(var.ty());
  if (!any) return;
  const rules::FactorRule rule =
      rules::RuleOf(rules::ViewCall(call, rules::StripDistribution(var.ty()), &kernels_));
  const std::string what = rules::KernelTable::IsKernelCall(call.op())
                               ? "kernel `" + rules::KernelName(call) + "`"
                               : ir::CalleeName(call);
  const std::string reason = what + " (`" + std::string(var.name()) + "`)";
  auto check = [&](const ir::Type& type, const std::vector<rules::TensorFactors>& tensors,
                   size_t* next) {
    std::vector<ir::DTensorType> types;
    dialect::CollectDTensorTypes(type, &types);
    for (const ir::DTensorType& each : types) {
      const rules::TensorFactors& factors = tensors[(*next)++];
      if (!each.defined()) continue;
      const mesh::Sharding& sharding = meshes_.ShardingOf(each);
      const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(each.tensor_ty());
      for (size_t d = 0; d < shape.size(); ++d) {
        const int64_t shards = mesh::NumShards(sharding.dims[d]);
        if (!MayPad(rule, factors[d], shards)) Add(shape[d], shards, reason);
      }
    }
  };
  size_t operand = 0, result = 0;
  for (const ir::Expr& arg : call.args()) check(arg.ty(), rule.operands, &operand);
  check(var.ty(), rule.results, &result);
}

void DividingSizes::VisitFunctionCall(const ir::Call& call, const ir::Function& callee) {
  for (size_t i = 0; i < call.args().size(); ++i) {
    std::vector<ir::DTensorType> given, taken;
    dialect::CollectDTensorTypes(call.args()[i].ty(), &given);
    dialect::CollectDTensorTypes(callee.params()[i].ty(), &taken);
    for (size_t t = 0; t < taken.size(); ++t) {
      if (!taken[t].defined() || !given[t].defined()) continue;
      const ir::NodeArray<ir::Expr>& from = ir::ShapeOf(given[t].tensor_ty());
      const ir::NodeArray<ir::Expr>& to = ir::ShapeOf(taken[t].tensor_ty());
      const mesh::Sharding& sharding = meshes_.ShardingOf(taken[t]);
      for (size_t d = 0; d < std::min(from.size(), to.size()); ++d) {
        ir::VisitVars(to[d], [&](const ir::Var& size) {
          const std::string* reason = Reason(size);
          if (reason != nullptr && !sharding.dims[d].empty())
            Add(from[d], mesh::NumShards(sharding.dims[d]), std::string(*reason));
        });
      }
    }
  }
}

// A size that is found out on shards is known only if they are even. One that is stated anew of a
// known shape is that of the value: both have to divide, or none.
void DividingSizes::VisitMatchCast(const ir::MatchCast& cast) {
  std::vector<ir::DTensorType> from, to;
  dialect::CollectDTensorTypes(cast.value().ty(), &from);
  dialect::CollectDTensorTypes(cast.ty(), &to);
  for (size_t i = 0; i < to.size(); ++i) {
    if (!to[i].defined()) continue;
    const ir::NodeArray<ir::Expr>& after = ir::ShapeOf(to[i].tensor_ty());
    const mesh::Sharding& sharding = meshes_.ShardingOf(to[i]);
    const bool is_known =
        i < from.size() && from[i].defined() && ir::HasKnownShape(from[i].tensor_ty());
    for (size_t d = 0; d < after.size(); ++d) {
      const int64_t shards = mesh::NumShards(sharding.dims[d]);
      if (!is_known) {
        Add(after[d], shards, "match_cast (`" + std::string(cast.var().name()) + "`)");
        continue;
      }
      const ir::Expr& before = ir::ShapeOf(from[i].tensor_ty())[d];
      if (ir::SameDim(before, after[d])) continue;
      if (const std::string* reason = ReasonOf(after[d]); reason != nullptr)
        Add(before, shards, std::string(*reason));
      if (const std::string* reason = ReasonOf(before); reason != nullptr)
        Add(after[d], shards, std::string(*reason));
    }
  }
}

// A caller that cuts and joins arrays knows the sizes of its arguments alone.
void DividingSizes::VisitResult(const ir::Function& function) {
  const CastSizes known(function);
  ForShardedDims(function.body().body().ty(), &meshes_, [&](const ir::Expr& dim, int64_t shards) {
    if (!known.IsKnown(dim)) Add(dim, shards, "a result, whose size its data decides");
  });
}

}  // namespace distir::padding
