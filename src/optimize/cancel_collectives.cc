// cancel_collectives: collectives that undo each other are replaced by the cheapest redistribution
// from the first value to the last one, which is often none.
//
//     a = R.dist.all_gather(x, mesh[0], "R")      # x: "S[0]"
//     b = R.dist.slice(a, mesh[0], "S[0]")    ->  x
//     c = R.dist.slice(a, mesh[0], "S[1]")    ->  c = R.dist.all_to_all(x, mesh[0], "S[1]")
//
// Also a view of a view, an all-to-all and its inverse, a gather of a slice. A collective whose
// value has other uses stays, and then does not count as saved.
#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "optimize/program/chain.h"

namespace distir::optimize {

namespace {

/*! \brief Lets a collective take what a view of it renames. */
bool SkipView(EditableFunction* editable, EditableBinding* binding) {
  auto call = ir::Call::Cast(binding->value);
  auto kind = dialect::DTensorCollective(call.op());
  if (!kind || !ir::Var::Is(call.args()[0])) return false;
  EditableBinding* view = editable->DefinitionOf(call.args()[0]);
  auto view_call = view == nullptr ? ir::Call() : ir::Call::Cast(view->value);
  if (!view_call.defined() ||
      dialect::DTensorCollective(view_call.op()) != mesh::CollectiveKind::kView ||
      !editable->IsVisible(view_call.args()[0], binding))
    return false;
  const ir::Expr& source = view_call.args()[0];
  if (kind == mesh::CollectiveKind::kView && ir::StructurallyEqual(source.ty(), call.ty())) {
    editable->Alias(binding, source);
  } else {
    editable->SetValue(binding, ir::MakeCall(call.ty(), call.op(), {source}, call.attrs(),
                                             call.ty_args(), call.span()));
  }
  editable->DropUnused(view);
  return true;
}

}  // namespace

void CancelCollectives(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions) {
    for (EditableBinding* binding : function.editable->Bindings()) {
      if (binding->dropped || binding->block == nullptr || !ir::Call::Is(binding->value)) continue;
      if (SkipView(function.editable.get(), binding)) ++tally->matched;
      if (binding->dropped) continue;
      if (FoldChain(function.editable.get(), binding, Chains::kMoving, program)) ++tally->matched;
    }
  }
}

}  // namespace distir::optimize
