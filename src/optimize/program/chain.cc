// Replaces a chain of collectives by the planner's sequence from its first value to its last.
#include "optimize/program/chain.h"

#include <optional>

#include "optimize/program/resharding.h"

namespace distir::optimize {

namespace {

// The planner's sequences are shorter; what lies further back was folded before.
constexpr int kMaxLength = 8;

/*! \brief Adds what an earlier collective reduces to the partial axes of a chain; false where the
 * two do not compose. */
bool ComposeReductions(const Resharding& earlier, mesh::Sharding* chain) {
  const mesh::Sharding later = *chain;
  *chain = earlier.source;
  if (later.partial.empty()) return true;
  if (!chain->partial.empty() && chain->reduction != later.reduction) return false;
  for (const mesh::AxisList& axes : chain->dims) {
    if (mesh::Overlaps(axes, later.partial)) return false;
  }
  if (mesh::Overlaps(chain->partial, later.partial)) return false;
  chain->reduction = later.reduction;
  chain->partial.insert(chain->partial.end(), later.partial.begin(), later.partial.end());
  return true;
}

struct Fold {
  ir::Expr origin;
  mesh::Sharding source;
  const planning::Plan* plan;
};

std::optional<Fold> BestFold(const EditableFunction& editable, const EditableBinding* binding,
                             const Resharding& last, Chains which, Program* program) {
  const ir::TensorType& type = ir::DTensorType::Cast(binding->value.ty()).tensor_ty();
  std::optional<Fold> best;
  const mesh::Mesh& root = program->meshes->Root(last.root);
  // Of the chain so far, with the best fold in it.
  Traffic best_total = program->costs->Of(last, root, type);
  mesh::Sharding source = last.source;
  const EditableBinding* now = binding;
  bool replaces_all = true;
  for (int length = 1; length < kMaxLength; ++length) {
    ir::Expr value = ir::Call::Cast(now->value).args()[0];
    const EditableBinding* definition = editable.DefinitionOf(value);
    if (definition == nullptr || definition->cast.defined()) break;
    auto earlier = ReadResharding(definition->value, program->meshes);
    if (!earlier || earlier->root != last.root || !ComposeReductions(*earlier, &source)) break;
    if (which == Chains::kMoving && !source.partial.empty()) break;
    replaces_all = replaces_all && editable.NumUses(value) == 1;
    if (replaces_all) best_total = best_total + program->costs->Of(*earlier, root, type);
    now = definition;
    ir::Expr origin = ir::Call::Cast(definition->value).args()[0];
    if (!editable.IsVisible(origin, binding)) break;
    if (which == Chains::kReducing && source.partial.empty()) continue;
    const planning::Plan& plan = program->costs->Plan(root, source, last.target, type);
    Traffic total = Costs::Of(plan);
    if (total.IsBetterThan(best_total)) {
      best_total = total;
      best = Fold{origin, source, &plan};
    }
  }
  return best;
}

}  // namespace

bool FoldChain(EditableFunction* editable, EditableBinding* binding, Chains which,
               Program* program) {
  auto last = ReadResharding(binding->value, program->meshes);
  if (!last || binding->block == nullptr) return false;
  auto fold = BestFold(*editable, binding, *last, which, program);
  if (!fold) return false;
  EditableBinding* replaced = editable->DefinitionOf(ir::Call::Cast(binding->value).args()[0]);
  auto target = ir::DTensorType::Cast(binding->value.ty());
  ir::Expr value = WritePlan(editable, binding, fold->origin, last->root, fold->source, *fold->plan,
                             target, program->meshes);
  if (ir::Var::Is(value)) {
    editable->Alias(binding, value);
  } else {
    editable->SetValue(binding, value);
  }
  editable->DropUnused(replaced);
  return true;
}

}  // namespace distir::optimize
