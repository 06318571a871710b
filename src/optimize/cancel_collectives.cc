// cancel_collectives: collectives that undo each other are replaced by the cheapest way from the
// first value to the last one, which often is none.
//
//     a = R.dist.all_gather(x, mesh[0], "R")      # x: "S[0]"
//     b = R.dist.slice(a, mesh[0], "S[0]")    ->  x
//     c = R.dist.slice(a, mesh[0], "S[1]")    ->  c = R.dist.all_to_all(x, mesh[0], "S[1]")
//
// Also a view of a view, an all-to-all and its inverse, a gather of a slice. A collective whose
// value has other uses stays, and then does not count as saved.
#include "dialect/collective.h"
#include "ir/build.h"
#include "optimize/chain.h"

namespace distir {
namespace optimize {

namespace {

/*! \brief Lets a collective take what a view of it renames. */
bool SkipView(EditableFunction* listing, Line* line) {
  auto call = ir::Call::Cast(line->value);
  auto kind = dialect::DTensorCollective(call.op());
  if (!kind || !ir::Var::Is(call.args()[0])) return false;
  Line* view = listing->DefinitionOf(call.args()[0]);
  auto view_call = view == nullptr ? ir::Call() : ir::Call::Cast(view->value);
  if (!view_call.defined() ||
      dialect::DTensorCollective(view_call.op()) != mesh::CollectiveKind::kView ||
      !listing->IsVisible(view_call.args()[0], line))
    return false;
  const ir::Expr& source = view_call.args()[0];
  if (kind == mesh::CollectiveKind::kView && ir::StructurallyEqual(source.ty(), call.ty())) {
    listing->Alias(line, source);
  } else {
    listing->SetValue(line, ir::MakeCall(call.ty(), call.op(), {source}, call.attrs(),
                                         call.ty_args(), call.span()));
  }
  listing->DropUnused(view);
  return true;
}

}  // namespace

void CancelCollectives(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions) {
    for (Line* line : function.listing->Lines()) {
      if (line->dropped || line->block == nullptr || !ir::Call::Is(line->value)) continue;
      if (SkipView(function.listing.get(), line)) ++tally->matched;
      if (line->dropped) continue;
      if (FoldChain(function.listing.get(), line, Chains::kMoving, program)) ++tally->matched;
    }
  }
}

}  // namespace optimize
}  // namespace distir
