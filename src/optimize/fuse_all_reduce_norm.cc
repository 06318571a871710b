// fuse_all_reduce_norm: an all-reduce, the residual sum behind it and the RMS norm of the sum
// become one operator, if the runtime has it.
//
//     b = R.dist.all_reduce(a, mesh[0], "R", ..)      t = R.dist.all_reduce_add_rms_norm(
//     c = R.add(r, b)                            ->           a, r, g, mesh[0], "R", .., epsilon=e)
//     d = R.nn.rms_norm(c, g, axes=[2], epsilon=e)    c = t[0]
//                                                     d = t[1]
#include <unordered_map>

#include "abi/collective.h"
#include "dialect/operators/collective.h"
#include "dialect/operators/fused_norm.h"
#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "optimize/optimization.h"

namespace distir::optimize {

namespace {

class NormFusion {
 public:
  NormFusion(EditableFunction* editable, bool is_offered, Tally* tally)
      : editable_(*editable), is_offered_(is_offered), tally_(*tally) {}

  void Run() {
    std::vector<EditableBinding*> bindings = editable_.Bindings();
    for (size_t i = 0; i < bindings.size(); ++i) order_.emplace(bindings[i], static_cast<int>(i));
    for (EditableBinding* binding : bindings) {
      if (binding->dropped || binding->block == nullptr || binding->cast.defined()) continue;
      auto call = ir::Call::Cast(binding->value);
      if (!call.defined() ||
          dialect::DTensorCollective(call.op()) != mesh::CollectiveKind::kAllReduce ||
          dialect::ReductionOf(call) != mesh::Reduction::kSum || !ir::DTensorType::Is(call.ty()))
        continue;
      if (const char* why = Fuse(binding, call)) tally_.Skip(why);
    }
  }

 private:
  /*! \brief Fuses an all-reduce with what follows; otherwise tells why not. */
  const char* Fuse(EditableBinding* binding, const ir::Call& reduction) {
    EditableBinding* sum = editable_.OnlyUserOf(binding->var);
    if (sum == nullptr) return "used more than once";
    auto add = ir::Call::Cast(sum->value);
    if (sum->block != binding->block || !add.defined() || !ir::IsOp(add.op(), "relax.add"))
      return "no sum follows";
    const ir::Expr& residual = add.args()[add.args()[0].same_as(binding->var) ? 1 : 0];
    auto type = ir::DTensorType::Cast(add.ty());
    EditableBinding* norm = NormOf(sum, type);
    if (norm == nullptr) return "no norm follows the sum";
    if (!ir::StructurallyEqual(residual.ty(), type) ||
        !ir::StructurallyEqual(binding->var.ty(), type))
      return "the sum broadcasts";
    auto norm_call = ir::Call::Cast(norm->value);
    const ir::Expr& weight = norm_call.args()[1];
    EditableBinding* definition = editable_.DefinitionOf(weight);
    if (definition != nullptr && definition->block == sum->block &&
        order_.at(definition) > order_.at(sum))
      return "the weight is computed later";
    if (!dialect::HasFusedNorm(type.tensor_ty())) return "not float32, float16 or bfloat16";
    if (!is_offered_) return "the runtime has no such operator";
    ir::Expr fused = editable_.InsertBefore(
        sum, sum->var.name(),
        dialect::MakeFusedNorm(reduction.args()[0], residual, weight, type,
                               dialect::ReduceAxes(reduction),
                               ir::attrs::kRMSNormEpsilon(norm_call.attrs()).cast<double>()));
    editable_.SetValue(sum, ir::MakeTupleGetItem(fused, 0));
    editable_.SetValue(norm, ir::MakeTupleGetItem(fused, 1));
    editable_.DropUnused(binding);
    ++tally_.matched;
    return nullptr;
  }

  /*! \brief The RMS norm of a sum over its last dimension, placed as the sum; null: none. */
  EditableBinding* NormOf(EditableBinding* sum, const ir::DTensorType& type) {
    for (EditableBinding* user : editable_.UsersOf(sum->var)) {
      auto call = ir::Call::Cast(user->value);
      if (user->block != sum->block || !call.defined() ||
          !ir::IsOp(call.op(), "relax.nn.rms_norm") || !call.args()[0].same_as(sum->var) ||
          !ir::StructurallyEqual(call.ty(), type))
        continue;
      auto axes = ir::attrs::kRMSNormAxes(call.attrs()).cast<ffi::Array<int64_t>>();
      int64_t last = type.tensor_ty().ndim() - 1;
      if (axes.size() == 1 && (axes[0] == -1 || axes[0] == last)) return user;
    }
    return nullptr;
  }

  EditableFunction& editable_;
  const bool is_offered_;
  Tally& tally_;
  std::unordered_map<const EditableBinding*, int> order_;
};

}  // namespace

void FuseAllReduceNorm(Program* program, Tally* tally) {
  bool is_offered = IsOffered(program->options, abi::Collective::kAllReduceAddRmsNorm);
  for (NamedFunction& function : program->functions)
    NormFusion(function.editable.get(), is_offered, tally).Run();
}

}  // namespace distir::optimize
