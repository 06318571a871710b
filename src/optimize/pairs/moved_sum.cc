// Sums over values before an all-to-all moves them instead of after it.
#include "optimize/pairs/moved_sum.h"

#include <optional>
#include <vector>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "optimize/experts/types.h"
#include "optimize/pairs/pair_dims.h"

namespace distir::optimize {

namespace {

struct MovedSum {
  ir::Expr moved;   // the result of the all-to-all
  ir::Expr before;  // what it moves
  ir::Expr mask;
  bool mask_is_first;
  std::vector<int> axes;  // of the mesh, along which it moves
  int mask_dim;           // the dimension of the mask that is summed over
};

/*! \brief The factor that a dimension of an operand is; -1 where it is none or several. */
int FactorOf(const RuledCall& call, int operand, int dim) {
  if (dim < 0) return -1;
  const rules::FactorList& factors = call.rule.operands[operand][dim];
  return factors.size() == 1 ? factors[0] : -1;
}

std::optional<MovedSum> ReadMovedSum(const EditableFunction& editable, SlotMasks* masks,
                                     const EditableBinding* at, const RuledCall& call,
                                     int moved_operand) {
  const int mask_operand = 1 - moved_operand;
  MovedSum sum;
  sum.moved = call.operands[moved_operand];
  sum.mask = call.operands[mask_operand];
  sum.mask_is_first = mask_operand == 0;
  EditableBinding* definition = editable.DefinitionOf(sum.moved);
  auto exchange = definition == nullptr ? ir::Call() : ir::Call::Cast(definition->value);
  if (!exchange.defined() || editable.NumUses(sum.moved) != 1 || !ir::Var::Is(sum.mask) ||
      dialect::DTensorCollective(exchange.op()) != mesh::CollectiveKind::kAllToAll ||
      !editable.IsVisible(exchange.args()[0], at) || masks->Choices(sum.mask) <= 0)
    return std::nullopt;
  sum.before = exchange.args()[0];

  // The all-to-all moves one dimension, that is summed over, for one that the mask has as well.
  const std::vector<int> before = DimsOf(TypeOf(sum.before)), after = DimsOf(TypeOf(sum.moved));
  const std::vector<int> of_mask = DimsOf(TypeOf(sum.mask)), of_result = DimsOf(TypeOf(at->var));
  for (int axis = 0; axis < static_cast<int>(before.size()); ++axis)
    if (before[axis] != after[axis]) sum.axes.push_back(axis);
  if (sum.axes.empty()) return std::nullopt;
  const int summed = FactorOf(call, moved_operand, before[sum.axes[0]]);
  const int kept = FactorOf(call, moved_operand, after[sum.axes[0]]);
  if (summed < 0 || kept < 0 || call.rule.factors[summed].reduction() != mesh::Reduction::kSum)
    return std::nullopt;
  int64_t num_devices = 1;
  for (int axis : sum.axes) {
    if (before[axis] != before[sum.axes[0]] || after[axis] != after[sum.axes[0]] ||
        FactorOf(call, mask_operand, of_mask[axis]) != kept || of_result[axis] < 0)
      return std::nullopt;
    num_devices *= TypeOf(sum.mask).device_mesh().shape()[axis];
  }
  sum.mask_dim = -1;
  for (int d = 0; d < static_cast<int>(call.rule.operands[mask_operand].size()); ++d)
    if (FactorOf(call, mask_operand, d) == summed) sum.mask_dim = d;
  if (sum.mask_dim < 0 || ir::StaticDim(ShapeOf(TypeOf(sum.mask))[sum.mask_dim]) % num_devices != 0)
    return std::nullopt;
  return sum;
}

/*! \brief A type with another dimension sharded along axes; -1: none. */
ir::DTensorType Along(const ir::DTensorType& type, const std::vector<int>& axes, int dim) {
  std::vector<int> placed = DimsOf(type);
  for (int axis : axes) placed[axis] = dim;
  return ir::MakeDTensorType(type.tensor_ty(), type.device_mesh(), ir::MakePlacement(placed));
}

void WriteMovedSum(EditableFunction* editable, EditableBinding* at, const ir::Call& call,
                   const MovedSum& sum) {
  const ir::DTensorType type = TypeOf(at->var);
  const ir::Expr mask = editable->InsertBefore(
      at, ir::Var::Cast(sum.mask).name(),
      dialect::MakeCollective(mesh::CollectiveKind::kAllToAll, sum.mask,
                              Along(TypeOf(sum.mask), sum.axes, sum.mask_dim)));
  ffi::Array<ir::Expr> args = {sum.before, mask};
  if (sum.mask_is_first) args = {mask, sum.before};
  if (ir::Tuple::Is(call.args()[0])) args = {ir::MakeTuple(args)};
  const ir::Expr partial = editable->InsertBefore(
      at, at->var.name(),
      ir::MakeCall(Along(type, sum.axes, -1), call.op(), args, call.attrs(), call.ty_args()));
  editable->SetValue(at, dialect::MakeCollective(mesh::CollectiveKind::kReduceScatter, partial,
                                                 type, sum.axes, mesh::Reduction::kSum));
  editable->DropUnused(editable->DefinitionOf(sum.moved));
}

}  // namespace

void SumBeforeMoving(EditableFunction* editable, SlotMasks* masks, EditableBinding* at) {
  if (at->dropped || at->block == nullptr || at->cast.defined()) return;
  auto call = ReadRule(at->value);
  if (!call || call->operands.size() != 2 || call->rule.results.size() != 1) return;
  for (int moved : {0, 1}) {
    if (auto sum = ReadMovedSum(*editable, masks, at, *call, moved)) {
      WriteMovedSum(editable, at, call->call, *sum);
      return;
    }
  }
}

}  // namespace distir::optimize
