// move_once: one value whose results, computed element by element, all move to one sharding is
// moved itself, once.
//
//     a = R.nn.relu(x)  # x: "S[0]"                  v = R.dist.all_to_all(x, mesh[0], "S[1]")
//     b = R.dist.all_to_all(a, mesh[0], "S[1]")      b = R.nn.relu(v)
//     c = R.exp(x)                               ->  d = R.exp(v)
//     d = R.dist.all_to_all(c, mesh[0], "S[1]")
//
// So is a value that is moved there in any case, and one of fewer bytes than what is computed of
// it, as in front of a cast to a longer type. Several operators may lie between the value and the
// collective, as long as nothing else uses what they give.
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "optimize/optimization.h"
#include "rules/operator.h"
#include "rules/stated/user_rules.h"

namespace distir::optimize {

namespace {

/*! \brief A collective, and the operators in front of it up to a value. */
struct Moved {
  EditableBinding* binding;
  ir::Expr origin;
  std::vector<ir::Call> operators;  // from the origin on
};

double BytesPerElement(const ir::Expr& value) {
  return ir::BytesPerElement(ir::DTensorType::Cast(value.ty()).tensor_ty());
}

class OneMove {
 public:
  OneMove(EditableFunction* editable, Tally* tally) : editable_(*editable), tally_(*tally) {}

  void Run() {
    using Key =
        std::tuple<const ffi::Object*, const ffi::Object*, const ffi::Object*, std::vector<int>>;
    std::map<Key, std::vector<Moved>> groups;
    std::vector<Key> order;
    for (EditableBinding* binding : editable_.Bindings()) {
      if (!IsMove(*binding)) continue;
      const ir::Call call = ir::Call::Cast(binding->value);
      Moved moved = Trace(binding, call.args()[0]);
      const Key key = {moved.origin.get(), call.op().get(), dialect::TargetMesh(call).get(),
                       dialect::PlacementDims(dialect::TargetPlacement(call))};
      std::vector<Moved>& group = groups[key];
      if (group.empty()) order.push_back(key);
      group.push_back(std::move(moved));
    }
    for (const Key& key : order) Merge(groups[key]);
  }

 private:
  static bool IsMove(const EditableBinding& binding) {
    const ir::Call* call = ir::Call::As(binding.value);
    if (call == nullptr || binding.block == nullptr || binding.cast.defined() ||
        !ir::DTensorType::Is(call->ty()))
      return false;
    const auto kind = dialect::DTensorCollective(call->op());
    return kind == mesh::CollectiveKind::kAllGather || kind == mesh::CollectiveKind::kAllToAll ||
           kind == mesh::CollectiveKind::kPermute || kind == mesh::CollectiveKind::kExchange;
  }

  /*! \brief Follows single uses back through operators of one tensor and through tuples. */
  Moved Trace(EditableBinding* binding, ir::Expr value) {
    Moved moved{binding, value, {}};
    const ir::DeviceMesh mesh = ir::DTensorType::Cast(binding->value.ty()).device_mesh();
    while (true) {
      EditableBinding* made = editable_.DefinitionOf(value);
      if (made == nullptr || editable_.NumUses(value) != 1 || made->cast.defined()) break;
      if (const ir::TupleGetItem* item = ir::TupleGetItem::As(made->value)) {
        EditableBinding* tuple = editable_.DefinitionOf(item->tuple());
        if (tuple == nullptr || !ir::Tuple::Is(tuple->value)) break;
        value = ir::Tuple::Cast(tuple->value).fields()[item->index()];
        continue;
      }
      const ir::Call* call = ir::Call::As(made->value);
      if (call == nullptr || !IsOfOneTensor(*call, mesh)) break;
      moved.operators.insert(moved.operators.begin(), *call);
      value = call->args()[0];
      moved.origin = value;
    }
    return moved;
  }

  /*! \brief True for a call that computes its result element by element of its first argument and
   * of scalars, which are on the mesh that the result moves to. */
  static bool IsOfOneTensor(const ir::Call& call, const ir::DeviceMesh& mesh) {
    const rules::Operator* record = rules::FindOperator(call.op());
    if (record == nullptr || !record->is_elementwise || rules::FindUserRule(call) != nullptr)
      return false;
    const ir::DTensorType* from = ir::DTensorType::As(call.args()[0].ty());
    const ir::DTensorType* to = ir::DTensorType::As(call.ty());
    if (from == nullptr || to == nullptr || !ir::Var::Is(call.args()[0]) ||
        from->tensor_ty().ndim() != to->tensor_ty().ndim())
      return false;
    for (size_t i = 1; i < call.args().size(); ++i) {
      const ir::Type& type = call.args()[i].ty();
      if (const ir::DTensorType* placed = ir::DTensorType::As(type)) {
        if (placed->tensor_ty().ndim() != 0 || !placed->device_mesh().same_as(mesh)) return false;
      } else if (ir::TensorType::Is(type) || ir::TupleType::Is(type)) {
        return false;
      }
    }
    return true;
  }

  void Merge(const std::vector<Moved>& group) {
    const Moved* first = nullptr;
    double before = 0, after = 0;  // bytes per element that move
    for (const Moved& each : group) {
      const ir::Expr& moved = ir::Call::Cast(each.binding->value).args()[0];
      before += BytesPerElement(moved);
      if (each.operators.empty()) after = BytesPerElement(moved);
    }
    if (after == 0) after = BytesPerElement(group[0].origin);
    if (after >= before) return;
    ir::Var value;
    for (const Moved& each : group) {
      if (first != nullptr && !editable_.IsVisible(value, each.binding)) {
        tally_.Skip("out of sight");
        continue;
      }
      if (first == nullptr) {
        if (!editable_.IsVisible(each.origin, each.binding)) {
          tally_.Skip("out of sight");
          continue;
        }
        first = &each;
        value = each.operators.empty() ? each.binding->var : Move(each);
      }
      if (each.operators.empty()) {
        if (!each.binding->var.same_as(value)) editable_.Alias(each.binding, value);
      } else {
        Compute(each, value);
      }
      ++tally_.matched;
    }
  }

  /*! \brief Moves the origin in front of a binding, as its collective does. */
  ir::Var Move(const Moved& moved) {
    const ir::Call call = ir::Call::Cast(moved.binding->value);
    const ir::DTensorType target = ir::DTensorType::Cast(call.ty());
    const ir::DTensorType type =
        ir::MakeDTensorType(ir::DTensorType::Cast(moved.origin.ty()).tensor_ty(),
                            target.device_mesh(), target.placement());
    return editable_.InsertBefore(
        moved.binding, moved.binding->var.name(),
        dialect::MakeCollective(*dialect::DTensorCollective(call.op()), moved.origin, type));
  }

  /*! \brief Computes the operators of what has been moved, at the place of their collective. */
  void Compute(const Moved& moved, ir::Expr value) {
    const ir::DTensorType target = ir::DTensorType::Cast(moved.binding->value.ty());
    EditableBinding* unused =
        editable_.DefinitionOf(ir::Call::Cast(moved.binding->value).args()[0]);
    for (size_t i = 0; i < moved.operators.size(); ++i) {
      const ir::Call& call = moved.operators[i];
      ffi::Array<ir::Expr> args = call.args();
      args.Set(0, value);
      const ir::DTensorType type = ir::MakeDTensorType(ir::DTensorType::Cast(call.ty()).tensor_ty(),
                                                       target.device_mesh(), target.placement());
      value = ir::MakeCall(type, call.op(), args, call.attrs(), call.ty_args(), call.span());
      if (i + 1 < moved.operators.size())
        value = editable_.InsertBefore(moved.binding, moved.binding->var.name(), value);
    }
    editable_.SetValue(moved.binding, value);
    if (unused != nullptr) editable_.DropUnused(unused);
  }

  EditableFunction& editable_;
  Tally& tally_;
};

}  // namespace

void MoveOnce(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions) OneMove(function.editable.get(), tally).Run();
}

}  // namespace distir::optimize
