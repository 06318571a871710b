// scatter_reductions: an all-reduce of which every device only keeps a slice is a reduce-scatter.
//
//     b = R.dist.all_reduce(a, mesh[0], "R", reduce_axes=[0], reduction="sum")
//     c = R.nn.relu(b)
//     d = R.dist.slice(c, mesh[0], "S[0]")
//     ->
//     b = R.dist.reduce_scatter(a, mesh[0], "S[0]", reduce_axes=[0], reduction="sum")
//     d = R.nn.relu(b)
//
// Slices first move in front of operators that can as well compute the slice only: those whose
// factor rule carries the sliced dimension from the result to operands. Slices of other operands,
// which all devices hold, cost nothing. They move only where they meet an all-reduce or a gather on
// the way, and only past values that nothing else uses, so nothing is computed or sent twice.
#include <algorithm>
#include <optional>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "optimize/program/chain.h"
#include "optimize/program/resharding.h"
#include "rules/call/call_sharding.h"
#include "rules/call/infer_type.h"
#include "rules/call/projection.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir::optimize {

namespace {

using mesh::CollectiveKind;
using mesh::Sharding;

/*! \brief A call that computes a slice of its result, and the slices of its arguments. */
struct SlicedCall {
  ir::DTensorType type;
  std::vector<ir::DTensorType> operands;
};

class SliceHoisting {
 public:
  SliceHoisting(EditableFunction* editable, Program* program, Tally* tally)
      : editable_(*editable),
        meshes_(*program->meshes),
        kernels_(*program->kernels),
        costs_(*program->costs),
        tally_(*tally) {}

  void Run() {
    for (EditableBinding* binding : editable_.Bindings()) {
      auto slice = SliceOf(binding);
      if (!slice.defined()) continue;
      EditableBinding* source = Movable(slice.args()[0], binding);
      if (source == nullptr || !Reaches(source, ir::DTensorType::Cast(slice.ty()))) continue;
      Hoist(binding);
    }
  }

 private:
  static ir::Call SliceOf(const EditableBinding* binding) {
    auto call = ir::Call::Cast(binding->value);
    bool is_slice = !binding->dropped && binding->block != nullptr && call.defined() &&
                    dialect::DTensorCollective(call.op()) == CollectiveKind::kSlice;
    return is_slice ? call : ir::Call();
  }

  /*! \brief The operator call behind a value that only this binding uses. */
  EditableBinding* Movable(const ir::Expr& value, const EditableBinding* user) {
    EditableBinding* binding = editable_.DefinitionOf(value);
    if (binding == nullptr || binding->block != user->block || binding->cast.defined() ||
        editable_.OnlyUserOf(value) != user)
      return nullptr;
    return binding;
  }

  static bool IsGoal(const ir::Expr& value) {
    auto call = ir::Call::Cast(value);
    auto kind = call.defined() ? dialect::DTensorCollective(call.op()) : std::nullopt;
    return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather;
  }

  /*! \brief True if a slice to `target` behind `binding` can move up to a collective. */
  bool Reaches(EditableBinding* binding, const ir::DTensorType& target) {
    if (IsGoal(binding->value)) return true;
    auto call = ir::Call::Cast(binding->value);
    if (!call.defined()) return false;
    auto sliced = Slice(call, target);
    if (!sliced) return false;
    for (size_t i = 0; i < call.args().size(); ++i) {
      if (!sliced->operands[i].defined()) continue;
      EditableBinding* operand = Movable(call.args()[i], binding);
      if (operand != nullptr && Reaches(operand, sliced->operands[i])) return true;
    }
    return false;
  }

  /*! \brief Call that computes only the part of its result that `target` states; nullopt if
   * impossible. An operand that stays as it is has a null type. */
  std::optional<SlicedCall> Slice(const ir::Call& call, const ir::DTensorType& target) {
    if (rules::FindOperator(call.op()) == nullptr || !ir::DTensorType::Is(call.ty()))
      return std::nullopt;
    for (const ir::Expr& arg : call.args()) {
      if (ir::Tuple::Is(arg) || ir::TupleType::Is(arg.ty()) || ir::TensorType::Is(arg.ty()))
        return std::nullopt;
    }
    ir::Type global_ty = rules::StripDistribution(call.ty());
    rules::FactorRule rule = rules::RuleOf(rules::ViewCall(call, global_ty, &kernels_));
    if (rule.results.size() != 1) return std::nullopt;
    const int root = meshes_.RootOf(target);
    const Sharding& wanted = meshes_.ShardingOf(target);
    std::vector<Sharding> shardings;
    std::vector<size_t> positions;
    std::vector<double> elements;
    for (size_t i = 0; i < call.args().size(); ++i) {
      auto type = ir::DTensorType::Cast(call.args()[i].ty());
      if (!type.defined()) continue;
      if (meshes_.RootOf(type) != root) return std::nullopt;
      shardings.push_back(meshes_.ShardingOf(type));
      positions.push_back(i);
      elements.push_back(rules::NumElements(rules::StaticSizes(type.tensor_ty())));
    }
    std::vector<const Sharding*> operands;
    for (const Sharding& sharding : shardings) operands.push_back(&sharding);
    if (operands.size() != rule.operands.size()) return std::nullopt;
    rules::CallSharding decided = rules::ImpliedSharding(rule, operands, {&wanted}, elements);
    if (decided.is_decomposed || !decided.partial.empty() ||
        mesh::Canonical(decided.results[0]) != mesh::Canonical(wanted))
      return std::nullopt;
    SlicedCall sliced{target, std::vector<ir::DTensorType>(call.args().size())};
    ffi::Array<ir::Expr> args = call.args();
    for (size_t k = 0; k < positions.size(); ++k) {
      auto type = ir::DTensorType::Cast(call.args()[positions[k]].ty());
      ir::Placement placement =
          meshes_.PlacementOn(target.device_mesh(), root, decided.operands[k]);
      if (!placement.defined()) return std::nullopt;
      auto operand_ty = ir::MakeDTensorType(type.tensor_ty(), target.device_mesh(), placement);
      args.Set(positions[k], ir::MakeVar("x", operand_ty, false));
      if (mesh::Canonical(decided.operands[k]) == mesh::Canonical(shardings[k]) &&
          type.device_mesh().same_as(target.device_mesh()))
        continue;
      if (!OnlySlices(root, shardings[k], decided.operands[k], type.tensor_ty()))
        return std::nullopt;
      sliced.operands[positions[k]] = operand_ty;
    }
    // The inferred result must be the one that was asked for.
    auto inferred = rules::InferCall(
        ir::MakeCall(target, call.op(), args, call.attrs(), call.ty_args(), call.span()), global_ty,
        rule, &meshes_);
    if (!ir::StructurallyEqual(inferred.type, target) || !inferred.sharding.partial.empty())
      return std::nullopt;
    return sliced;
  }

  bool OnlySlices(int root, const Sharding& source, const Sharding& target,
                  const ir::TensorType& type) {
    const planning::Plan& plan = costs_.Plan(meshes_.Root(root), source, target, type);
    return std::all_of(plan.steps.begin(), plan.steps.end(),
                       [](const auto& step) { return step.kind == CollectiveKind::kSlice; });
  }

  /*! \brief Moves the slice of a binding in front of the call that it slices, and on from there. */
  void Hoist(EditableBinding* binding) {
    auto slice = ir::Call::Cast(binding->value);
    auto target = ir::DTensorType::Cast(slice.ty());
    EditableBinding* source = Movable(slice.args()[0], binding);
    if (source == nullptr || IsGoal(source->value)) return;
    auto call = ir::Call::Cast(source->value);
    auto sliced = call.defined() ? Slice(call, target) : std::nullopt;
    if (!sliced) return;
    ++tally_.matched;
    ffi::Array<ir::Expr> args = call.args();
    std::vector<EditableBinding*> next;
    for (size_t i = 0; i < args.size(); ++i) {
      const ir::DTensorType& operand_ty = sliced->operands[i];
      if (!operand_ty.defined()) continue;
      const int root = meshes_.RootOf(operand_ty);
      const Sharding& from = meshes_.ShardingOf(ir::DTensorType::Cast(args[i].ty()));
      const Sharding& to = meshes_.ShardingOf(operand_ty);
      const planning::Plan& plan =
          costs_.Plan(meshes_.Root(root), from, to, operand_ty.tensor_ty());
      ir::Expr value =
          WritePlan(&editable_, source, args[i], root, from, plan, operand_ty, &meshes_);
      if (ir::Call::Is(value)) value = editable_.InsertBefore(source, source->var.name(), value);
      args.Set(i, value);
      if (EditableBinding* inserted = editable_.DefinitionOf(value); SliceOf(inserted).defined())
        next.push_back(inserted);
    }
    editable_.SetValue(
        binding, ir::MakeCall(target, call.op(), args, call.attrs(), call.ty_args(), call.span()));
    editable_.DropUnused(source);
    for (EditableBinding* each : next) Hoist(each);
  }

  EditableFunction& editable_;
  dialect::MeshTable& meshes_;
  rules::KernelTable& kernels_;
  Costs& costs_;
  Tally& tally_;
};

}  // namespace

void ScatterReductions(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions) {
    SliceHoisting(function.editable.get(), program, tally).Run();
    for (EditableBinding* binding : function.editable->Bindings()) {
      if (!binding->dropped &&
          FoldChain(function.editable.get(), binding, Chains::kReducing, program))
        ++tally->matched;
    }
  }
}

}  // namespace distir::optimize
