// Implements DecomposeSharded, also for dimensions that the shards do not divide.
#include "decompose/pass.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "decompose/algorithm.h"
#include "decompose/creation.h"
#include "decompose/joins.h"
#include "dialect/mesh_table.h"
#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"
#include "rules/tails.h"
#include "support/error.h"

namespace distir::decompose {

namespace {

/*! \brief A call that has to be decomposed. */
struct Found {
  rules::Decomposition decomposition;
  rules::Decision decision;
};

std::optional<Found> Find(const ir::Call& call, rules::Decisions* decisions) {
  rules::Decomposition decomposition = FindDecomposition(call.op());
  if (decomposition == nullptr) return std::nullopt;
  const rules::Computed* computed = decisions->WithFactor<rules::DecomposedFactor>(call);
  if (computed == nullptr || !computed->sharding.is_decomposed) return std::nullopt;
  return Found{decomposition, *decisions->Of(call)};
}

/*! \brief True if a dimension of a decomposed factor does not divide into its shards. */
bool IsUneven(const rules::FactorRule& rule, const std::vector<rules::TensorFactors>& tensors,
              const std::vector<ir::TensorType>& types,
              const std::vector<mesh::Sharding>& shardings) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ir::NodeArray<ir::Expr>& sizes = ir::ShapeOf(types[i]);
    for (size_t d = 0; d < std::min(tensors[i].size(), sizes.size()); ++d) {
      for (int f : tensors[i][d]) {
        if (rule.factors[f].Is<rules::DecomposedFactor>() &&
            !ir::AlwaysDivides(sizes[d], mesh::NumShards(shardings[i].dims[d])))
          return true;
      }
    }
  }
  return false;
}

bool HasUneven(const ir::Call& call, const ir::Var& result, dialect::MeshTable* meshes) {
  return meshes->IsUneven(result.ty()) ||
         std::any_of(call.args().begin(), call.args().end(),
                     [&](const ir::Expr& arg) { return meshes->IsUneven(arg.ty()); });
}

enum class Calls { kAll, kUneven };

class Decomposer : public ir::FunctionRewriter {
 public:
  Decomposer(const ir::Function& function, Calls calls, dialect::MeshTable* meshes,
             rules::KernelTable* kernels)
      : calls_(calls),
        creations_(function, meshes),
        joins_(meshes),
        meshes_(*meshes),
        decisions_(meshes, kernels) {
    ir::VisitBindings(function.body(), [this](const ir::Binding& binding) {
      const ir::Call& call = ir::BoundCall(binding);
      if (!call.defined()) return;
      joins_.Note(binding.var(), call);
      if (const Creation* creation = creations_.Find(call);
          creation != nullptr && calls_ == Calls::kAll)
        joins_.Add(creation->call, creation->sharding,
                   meshes_.RootOf(ir::DTensorType::Cast(call.ty())));
      if (calls_ == Calls::kUneven && !MayBeUneven(call, binding.var())) return;
      std::optional<Found> found = Find(call, &decisions_);
      if (!found || !Takes(call, *found)) return;
      joins_.Add(call, found->decision.call.sharding, found->decision.call.root);
      joins_.AddMoved(call, found->decision.call.sharding, found->decision.call.root);
      found_.emplace(call.get(), std::move(*found));
    });
    joins_.Finish(function);
  }

  /*! \brief True if the pass changes anything. */
  bool any() const { return !found_.empty() || (calls_ == Calls::kAll && !creations_.empty()); }

 private:
  bool KeepsUnchanged() const override { return true; }

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    auto call = ir::Call::Cast(value);
    if (joins_.IsUnused(var)) return;
    if (calls_ == Calls::kAll) {
      if (creations_.IsOnlyInPieces(var)) return;
      if (const Creation* creation = call.defined() ? creations_.Find(call) : nullptr)
        return Create(var, *creation, ir::DTensorType::Cast(call.ty()));
    }
    auto known = found_.find(value.get());
    if (known == found_.end()) return FunctionRewriter::RewriteVarBinding(var, value);
    const Found& found = known->second;
    const auto& [rule, inferred] = found.decision;
    ir::Count(ir::CalleeName(call));
    CreditCall(var, call);
    Writer writer(&meshes_, inferred.device_mesh,
                  [&](const ir::Expr& made) { return Emit(var.name(), made); });
    if (const Moved* moved = joins_.FindMoved(call)) {
      const ir::Expr of = writer.Placed(Rewrite(moved->of), moved->sharding);
      return BindAs(var, writer.Move(of, moved->dim, moved->size, moved->segments, moved->fill),
                    inferred, &writer);
    }
    const DecomposedCall decomposed = PlacedCall(call, rule, inferred.sharding, &writer);
    BindAs(var, found.decomposition(decomposed, &writer), inferred, &writer);
  }

  /*! \brief A call with its operands, or what a join is traced to, placed as decided. */
  DecomposedCall PlacedCall(const ir::Call& call, const rules::FactorRule& rule,
                            const rules::CallSharding& sharding, Writer* writer) {
    DecomposedCall placed{call, rule, sharding};
    ffi::Array<ir::Expr> args = call.args();
    const std::vector<mesh::Sharding>* shardings = &sharding.operands;
    if (const Join* join = joins_.Find(call)) {
      args.Set(0, ir::MakeTuple(ffi::Array<ir::Expr>(join->operands)));
      shardings = &join->shardings;
      placed.parts = join->parts;
    }
    args = RewriteAll(args);
    if (!shardings->empty()) args = writer->PlaceAll(args, *shardings);
    placed.call =
        ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args(), call.span());
    return placed;
  }

  /*! \brief Credits the bindings written from here on to a call. */
  void CreditCall(const ir::Var& var, const ir::Call& call) {
    Credit("DecomposeSharded", ir::CalleeName(call), var);
  }

  bool MayBeUneven(const ir::Call& call, const ir::Var& result) const {
    return rules::IsDecomposedUneven(call.op()) && HasUneven(call, result, &meshes_);
  }

  bool Takes(const ir::Call& call, const Found& found) const {
    if (calls_ == Calls::kAll) return true;
    const rules::OpView view = rules::ViewCall(call, rules::StripDistribution(call.ty()));
    const auto& [rule, inferred] = found.decision;
    return IsUneven(rule, rule.operands, view.operands, inferred.sharding.operands) ||
           IsUneven(rule, rule.results, view.results, inferred.sharding.results);
  }

  /*! \brief Binds `var` to a value of `type`, of which the shards are made. */
  void Create(const ir::Var& var, const Creation& creation, const ir::DTensorType& type) {
    ir::Count(ir::CalleeName(creation.call));
    CreditCall(var, creation.call);
    Writer writer(&meshes_, creation.view,
                  [&](const ir::Expr& made) { return Emit(var.name(), made); });
    ir::Expr result = creation.decomposition(
        PlacedCall(creation.call, creation.rule, creation.sharding, &writer), &writer);
    result = writer.Placed(result, meshes_.ShardingOf(type));
    if (!ir::StructurallyEqual(result.ty(), type))
      result = Emit(var.name(), dialect::MakeRedistribute(result, type));
    Alias(var, result);
  }

  /*! \brief Binds `var` to a value, placed exactly as its type says. */
  void BindAs(const ir::Var& var, const ir::Expr& value, const rules::InferredCall& inferred,
              Writer* writer) {
    auto tuple = ir::Tuple::Cast(value);
    if (!tuple.defined()) {
      return Alias(var, writer->Named(writer->Placed(value, inferred.sharding.results[0])));
    }
    ffi::Array<ir::Expr> fields;
    for (size_t i = 0; i < tuple.fields().size(); ++i)
      fields.push_back(
          writer->Named(writer->Placed(tuple.fields()[i], inferred.sharding.results[i])));
    Bind(var, ir::MakeTuple(fields));
  }

  const Calls calls_;
  const Creations creations_;
  Joins joins_;
  dialect::MeshTable& meshes_;
  rules::Decisions decisions_;
  /*! \brief The calls that are decomposed, by the call. */
  std::unordered_map<const ffi::Object*, Found> found_;
};

}  // namespace

bool IsSharded(const ir::Call& call, rules::Decisions* decisions) {
  return Find(call, decisions).has_value();
}

namespace {

ir::IRModule Expand(const ir::IRModule& mod, Calls calls) {
  dialect::MeshTable meshes(mod);
  rules::KernelTable kernels(mod.functions());
  ir::FunctionMap functions = mod.functions();
  bool any = false;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    Decomposer decomposer(function, calls, &meshes, &kernels);
    if (!decomposer.any()) continue;
    // Partial results of a call that is decomposed only now would not be reduced any more.
    DISTIR_REQUIRE(!dialect::HasExplicitReductions(function), ValueError)
        << "in `" << gv.name() << "`: a call is sharded along a dimension that its operator looks "
        << "along, although the function has been through LegalizeRedistribute";
    functions.Set(gv, decomposer.RewriteFunction(function));
    any = true;
  }
  return any ? ir::MakeModule(functions, mod.attrs(), meshes.GlobalInfos()) : mod;
}

}  // namespace

ir::IRModule DecomposeSharded(const ir::IRModule& mod) { return Expand(mod, Calls::kAll); }
ir::IRModule DecomposeUneven(const ir::IRModule& mod) {
  return dialect::HasExplicitReductions(mod) ? mod : Expand(mod, Calls::kUneven);
}

}  // namespace distir::decompose
