// LegalizeRedistribute: redistributions and the reductions that rules imply become explicit
// collectives.
#include "redistribute/pass.h"

#include <tvm/ffi/error.h>

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cost/cluster.h"
#include "dialect/mesh_table.h"
#include "dialect/operators/collective.h"
#include "dialect/operators/copies_reduction.h"
#include "dialect/operators/local_view.h"
#include "ir/build.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "planning/planner.h"
#include "redistribute/partial.h"
#include "redistribute/steps.h"
#include "rules/linearity.h"
#include "support/error.h"

namespace distir::redistribute {

namespace ffi = tvm::ffi;

namespace {

/*! \brief A value that still has to be reduced before anything but its redistribution may use it.
 */
struct Pending {
  ir::Expr value;
  int root;
  mesh::Sharding sharding;  // with partial axes
};

class Legalizer : public ir::FunctionRewriter {
 public:
  Legalizer(dialect::MeshTable* meshes, rules::KernelTable* kernels, planning::Planner* planner)
      : meshes_(*meshes), decisions_(meshes, kernels), planner_(*planner) {}

  ir::Function Run(const ir::Function& function) {
    reductions_are_explicit_ = dialect::HasExplicitReductions(function);
    CollectRedistributedOnce(function);
    return RewriteFunction(function);
  }

 private:
  bool KeepsUnchanged() const override { return true; }

  ir::Node RewriteAttrs(const ir::Node& attrs) override {
    return ir::WithAttr(attrs, dialect::kExplicitReductions, true);
  }

  // Variables whose single use is a redistribution: their reduction can be part of it. So can that
  // of what is only lengthened before.
  void CollectRedistributedOnce(const ir::Function& function) {
    std::vector<const ffi::Object*> redistributed;
    std::vector<std::pair<const ffi::Object*, ir::Call>> lengthened;
    ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
      const ir::Call& call = ir::BoundCall(binding);
      if (!call.defined()) return;
      if (IsRedistribute(call)) redistributed.push_back(call.args()[0].get());
      if (IsLengthened(call)) lengthened.emplace_back(binding.var().get(), call);
    });
    if (redistributed.empty()) return;
    const auto uses = ir::CountUses(function);
    auto is_used_once = [&uses](const ffi::Object* value) {
      auto found = uses.find(value);
      return found != uses.end() && found->second == 1;
    };
    for (const ffi::Object* value : redistributed) {
      if (is_used_once(value)) redistributed_once_.insert(value);
    }
    for (const auto& [var, call] : lengthened) {
      const ffi::Object* value = call.args()[0].get();
      if (redistributed_once_.count(var) > 0 && is_used_once(value))
        lengthened_.emplace(value, call);
    }
  }

  /*! \brief True if a call gives its only tensor with some more elements, fewer than devices, along
   * dimensions that are not sharded: what makes shards even. */
  bool IsLengthened(const ir::Call& call) {
    if (call.args().size() != 1 || !rules::MayCommute(call.op())) return false;
    const auto from = ir::DTensorType::Cast(call.args()[0].ty());
    const auto to = ir::DTensorType::Cast(call.ty());
    if (!from.defined() || !to.defined() || !dialect::SamePlacement(from, to)) return false;
    const ir::NodeArray<ir::Expr>& before = ir::ShapeOf(from.tensor_ty());
    const ir::NodeArray<ir::Expr>& after = ir::ShapeOf(to.tensor_ty());
    const int64_t devices = meshes_.Root(meshes_.RootOf(from)).size();
    bool any = false;
    if (before.size() != after.size()) return false;
    for (size_t d = 0; d < before.size(); ++d) {
      if (ir::SameDim(before[d], after[d])) continue;
      const int64_t more = ir::StaticDim(after[d]) - ir::StaticDim(before[d]);
      if (ir::StaticDim(before[d]) < 0 || more < 0 || more >= devices) return false;
      any = true;
    }
    return any;
  }

  /*! \brief True if a partial value may stay so up to its only redistribution. */
  bool StaysPartial(const ir::Var& var, mesh::Reduction reduction) const {
    if (redistributed_once_.count(var.get()) > 0) return true;
    auto found = lengthened_.find(var.get());
    return found != lengthened_.end() && rules::CommutesWith(found->second, {true}, reduction);
  }

  static bool IsRedistribute(const ir::Call& call) {
    return ir::IsOp(call.op(), "relax.dist.redistribute");
  }

  /*! \brief Reductions that a call implies and that nobody has written; behind a local view they
   * are written. */
  std::optional<PartialValue> ToReduce(const ir::Call& call) {
    if (reductions_are_explicit_ || dialect::IsLocalView(call.op())) return std::nullopt;
    return PartialResult(call, &decisions_);
  }

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    const ir::Call* bound = ir::Call::As(value);
    if (bound == nullptr) return FunctionRewriter::RewriteVarBinding(var, value);
    const ir::Call& call = *bound;
    if (IsRedistribute(call)) return Redistribute(var, call);
    if (dialect::IsCopiesReduction(call.op()) && ir::DTensorType::Is(call.args()[0].ty())) {
      ir::Count(mesh::CollectiveName(mesh::CollectiveKind::kAllReduce));
      Bind(var, dialect::MakeCopiesReduction(call, Rewrite(call.args()[0])));
      return;
    }
    if (lengthened_.count(call.args().empty() ? nullptr : call.args()[0].get()) > 0) {
      auto found = pending_.find(call.args()[0].get());
      if (found != pending_.end()) {
        Pending longer = found->second;
        longer.value = Bind(var, Rewrite(value));
        pending_.emplace(var.get(), longer);
        return;
      }
    }
    const std::optional<PartialValue> partial = ToReduce(call);
    if (!partial) return FunctionRewriter::RewriteVarBinding(var, value);
    Pending pending{Rewrite(value), partial->root, partial->sharding};
    if (StaysPartial(var, pending.sharding.reduction)) {
      pending.value = Bind(var, pending.value);
      pending_.emplace(var.get(), pending);
      return;
    }
    ir::DTensorType target = ir::DTensorType::Cast(call.ty());
    DISTIR_REQUIRE(target.defined(), ValueError)
        << "`" << var.name() << "`: a partial result inside a tuple cannot be reduced";
    Lead(var, pending, target);
  }

  void Redistribute(const ir::Var& var, const ir::Call& call) {
    ir::DTensorType target = ir::DTensorType::Cast(call.ty());
    auto found = pending_.find(call.args()[0].get());
    if (found != pending_.end()) return Lead(var, found->second, target);
    Pending source{Rewrite(call.args()[0]), -1, {}};
    auto source_ty = ir::DTensorType::Cast(source.value.ty());
    if (!source_ty.defined()) {
      // A Tensor that every device has made alike is the same as a replicated DTensor.
      ir::DTensorType replicated = ReplicatedOn(target);
      source.value = Emit(var.name(), dialect::MakeRedistribute(source.value, replicated));
      source_ty = replicated;
    }
    source.root = meshes_.RootOf(source_ty);
    source.sharding = meshes_.ShardingOf(source_ty);
    Lead(var, source, target);
  }

  static ir::DTensorType ReplicatedOn(const ir::DTensorType& target) {
    std::vector<int> replica(target.device_mesh().shape().size(), -1);
    return ir::MakeDTensorType(target.tensor_ty(), target.device_mesh(),
                               ir::MakePlacement(replica));
  }

  /*! \brief Writes the collectives that lead from `source` to exactly the target type, bound to
   * `var`. */
  void Lead(const ir::Var& var, const Pending& source, const ir::DTensorType& target_ty) {
    const int target_root = meshes_.RootOf(target_ty);
    const mesh::Sharding& target = meshes_.ShardingOf(target_ty);
    const ir::TensorType& tensor_ty = target_ty.tensor_ty();
    ir::Expr value = source.value;
    mesh::Sharding now = source.sharding;
    if (source.root != target_root) {
      if (!now.partial.empty()) {
        mesh::Sharding reduced = now;
        reduced.partial.clear();
        value = AsVar(var, Chain(var, value, source.root, now, reduced, tensor_ty));
      }
      ir::Count(mesh::CollectiveName(mesh::CollectiveKind::kTransfer));
      Bind(var, dialect::MakeCollective(mesh::CollectiveKind::kTransfer, value, target_ty));
      return;
    }
    value = Chain(var, value, target_root, now, target, tensor_ty);
    auto reached = ir::DTensorType::Cast(value.ty());
    if (dialect::SamePlacement(reached, target_ty)) return Alias(var, value);
    Bind(var, dialect::MakeCollective(mesh::CollectiveKind::kView, AsVar(var, value), target_ty));
  }

  ir::Expr AsVar(const ir::Var& var, const ir::Expr& value) {
    return ir::Call::Is(value) ? ir::Expr(Emit(var.name(), value)) : value;
  }

  /*! \brief Emits all steps of the plan but the last, which is returned unbound. */
  ir::Expr Chain(const ir::Var& var, ir::Expr value, int root, mesh::Sharding now,
                 const mesh::Sharding& target, const ir::TensorType& tensor_ty) {
    value = AsVar(var, value);
    if (now == target) return value;
    DISTIR_REQUIRE(tensor_ty.ndim() == 0 || ir::HasKnownShape(tensor_ty), ValueError)
        << "`" << var.name() << "` has no known shape, and has to be redistributed from "
        << meshes_.Text(root, now) << " to " << meshes_.Text(root, target)
        << "; state its shape with R.match_cast, or let it be replicated";
    const std::vector<planning::PlanStep>& steps =
        planner_.Find(meshes_.Root(root), now, target, SizeOf(tensor_ty)).steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (i > 0) value = Emit(var.name(), value);
      ir::Count(mesh::CollectiveName(steps[i].kind));
      value = StepCall(value, root, now, steps[i], tensor_ty);
      now = steps[i].result;
    }
    return value;
  }

  ir::Expr StepCall(const ir::Expr& value, int root, const mesh::Sharding& now,
                    const planning::PlanStep& step, const ir::TensorType& tensor_ty) {
    return MakeStep(value, step, now.reduction, root, tensor_ty, ir::DTensorType(), &meshes_);
  }

  dialect::MeshTable& meshes_;
  rules::Decisions decisions_;
  planning::Planner& planner_;
  bool reductions_are_explicit_ = false;
  std::unordered_set<const ffi::Object*> redistributed_once_;
  /*! \brief By variables whose single use it is, a call that lengthens them for their only
   * redistribution. */
  std::unordered_map<const ffi::Object*, ir::Call> lengthened_;
  std::unordered_map<const ffi::Object*, Pending> pending_;
};

/*! \brief True if an earlier run has left nothing to do. */
bool IsLegal(const ir::Function& function) {
  if (!dialect::HasExplicitReductions(function)) return false;
  bool is_legal = true;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    const ir::Call& call = ir::BoundCall(binding);
    if (call.defined() && dialect::IsLegalizable(call)) is_legal = false;
  });
  return is_legal;
}

}  // namespace

ir::IRModule LegalizeRedistribute(const ir::IRModule& mod) {
  dialect::MeshTable meshes(mod);
  rules::KernelTable kernels(mod.functions());
  planning::Planner planner(cost::ToCluster(ir::GetAttr(mod.attrs(), cost::kClusterAttr)));
  ir::FunctionMap functions = mod.functions();
  bool any = false;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined() || !dialect::IsDistributed(function) || IsLegal(function)) continue;
    functions.Set(gv, Legalizer(&meshes, &kernels, &planner).Run(function));
    any = true;
  }
  return any ? ir::MakeModule(functions, mod.attrs(), meshes.GlobalInfos()) : mod;
}

}  // namespace distir::redistribute
