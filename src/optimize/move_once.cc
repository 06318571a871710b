// move_once: if the results of elementwise operators on one value all move to one sharding, the
// value itself is moved, once.
//
//     a = R.nn.relu(x)  # x: "S[0]"                  v = R.dist.all_to_all(x, mesh[0], "S[1]")
//     b = R.dist.all_to_all(a, mesh[0], "S[1]")      b = R.nn.relu(v)
//     c = R.exp(x)                               ->  d = R.exp(v)
//     d = R.dist.all_to_all(c, mesh[0], "S[1]")
//
// So is a value that is moved there in any case, and one of fewer bytes than what is computed of
// it, as in front of a cast to a longer type. Several operators may lie between the value and the
// collective, as of x + exp(x), as long as nothing else uses what they give.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/symbolic.h"
#include "optimize/optimization.h"
#include "rules/operator.h"
#include "rules/stated/user_rules.h"

namespace distir::optimize {

namespace {

/*! \brief A collective, and the operators in front of it down from one value. */
struct Moved {
  EditableBinding* binding;
  ir::Expr origin;
  std::vector<EditableBinding*> operators;  // in program order
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
    const std::vector<EditableBinding*> bindings = editable_.Bindings();
    for (size_t i = 0; i < bindings.size(); ++i) place_.emplace(bindings[i], i);
    for (EditableBinding* binding : bindings) {
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

  /*! \brief Operators between some values and one that is moved, of which nothing else uses what
   * they give. */
  struct Cone {
    std::map<size_t, EditableBinding*> operators;  // by place in the program
    /*! \brief The values at its edge: their definitions, and how often the cone uses them. */
    std::map<const ffi::Object*, std::pair<ir::Expr, int>> edge;

    void Use(const ir::Expr& value, int times) {
      auto found = edge.try_emplace(value.get(), value, 0).first;
      found->second.second += times;
    }
  };

  /*! \brief Follows a value back to the earliest one that alone makes it, element by element. */
  Moved Trace(EditableBinding* binding, const ir::Expr& value) {
    const ir::DeviceMesh mesh = ir::DTensorType::Cast(binding->value.ty()).device_mesh();
    Cone cone;
    cone.Use(value, 1);
    Moved moved{binding, value, {}};
    while (cone.operators.size() < kMostOperators && Extend(&cone, mesh)) {
      if (cone.edge.size() != 1) continue;
      moved.origin = cone.edge.begin()->second.first;
      moved.operators.clear();
      for (const auto& [place, each] : cone.operators) moved.operators.push_back(each);
    }
    return moved;
  }

  /*! \brief Takes the last operator at the edge into the cone, or follows a field of a tuple. */
  bool Extend(Cone* cone, const ir::DeviceMesh& mesh) {
    EditableBinding* last = nullptr;
    int uses = 0;
    for (const auto& [id, value] : cone->edge) {
      EditableBinding* made = editable_.DefinitionOf(value.first);
      if (made == nullptr || place_.count(made) == 0) continue;
      if (last != nullptr && place_.at(made) < place_.at(last)) continue;
      last = made;
      uses = value.second;
    }
    if (last == nullptr || editable_.NumUses(last->var) != uses || last->cast.defined())
      return false;
    if (const ir::TupleGetItem* item = ir::TupleGetItem::As(last->value)) {
      const ir::Expr field = FieldOf(*item);
      if (field.get() == nullptr) return false;
      cone->edge.erase(last->var.get());
      cone->Use(field, 1);
      return true;
    }
    const ir::Call* call = ir::Call::As(last->value);
    if (call == nullptr || !IsElementwise(*call, mesh)) return false;
    cone->edge.erase(last->var.get());
    for (const ir::Expr& arg : call->args()) {
      if (IsMoved(arg)) cone->Use(arg, 1);
    }
    cone->operators.emplace(place_.at(last), last);
    return true;
  }

  /*! \brief Returns the value of a field of a tuple; null where it is not known. */
  ir::Expr FieldOf(const ir::TupleGetItem& item) const {
    EditableBinding* tuple = editable_.DefinitionOf(item.tuple());
    if (tuple == nullptr || !ir::Tuple::Is(tuple->value)) return ir::Expr();
    return ir::Tuple::Cast(tuple->value).fields()[item.index()];
  }

  static bool IsMoved(const ir::Expr& arg) {
    const ir::DTensorType* placed = ir::DTensorType::As(arg.ty());
    return placed != nullptr && placed->tensor_ty().ndim() != 0;
  }

  /*! \brief True for a call that computes its result element by element of tensors of its shape,
   * and of scalars, which are on the mesh that the result moves to. */
  static bool IsElementwise(const ir::Call& call, const ir::DeviceMesh& mesh) {
    const rules::Operator* record = rules::FindOperator(call.op());
    const ir::DTensorType* to = ir::DTensorType::As(call.ty());
    if (record == nullptr || !record->is_elementwise || to == nullptr ||
        rules::FindUserRule(call) != nullptr)
      return false;
    bool any = false;
    for (const ir::Expr& arg : call.args()) {
      const ir::DTensorType* placed = ir::DTensorType::As(arg.ty());
      if (placed == nullptr) {
        if (ir::TensorType::Is(arg.ty()) || ir::TupleType::Is(arg.ty())) return false;
      } else if (placed->tensor_ty().ndim() == 0) {
        if (!placed->device_mesh().same_as(mesh)) return false;
      } else if (!ir::Var::Is(arg) || !SameShape(placed->tensor_ty(), to->tensor_ty())) {
        return false;
      } else {
        any = true;
      }
    }
    return any;
  }

  static bool SameShape(const ir::TensorType& a, const ir::TensorType& b) {
    if (!ir::HasKnownShape(a) || !ir::HasKnownShape(b)) return false;
    const ir::NodeArray<ir::Expr>&left = ir::ShapeOf(a), &right = ir::ShapeOf(b);
    return std::equal(left.begin(), left.end(), right.begin(), right.end(), ir::SameDim);
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
    std::unordered_map<const ffi::Object*, ir::Expr> computed = {{moved.origin.get(), value}};
    for (size_t i = 0; i < moved.operators.size(); ++i) {
      const ir::Call call = ir::Call::Cast(moved.operators[i]->value);
      ffi::Array<ir::Expr> args = call.args();
      for (size_t k = 0; k < args.size(); ++k) {
        if (IsMoved(args[k])) args.Set(k, computed.at(Resolved(args[k], computed).get()));
      }
      const ir::DTensorType type = ir::MakeDTensorType(ir::DTensorType::Cast(call.ty()).tensor_ty(),
                                                       target.device_mesh(), target.placement());
      value = ir::MakeCall(type, call.op(), args, call.attrs(), call.ty_args(), call.span());
      if (i + 1 < moved.operators.size())
        value = editable_.InsertBefore(moved.binding, moved.binding->var.name(), value);
      computed.emplace(moved.operators[i]->var.get(), value);
    }
    editable_.SetValue(moved.binding, value);
    if (unused != nullptr) editable_.DropUnused(unused);
  }

  /*! \brief The value that is computed anew, behind fields of tuples. */
  ir::Expr Resolved(ir::Expr value,
                    const std::unordered_map<const ffi::Object*, ir::Expr>& computed) const {
    while (computed.count(value.get()) == 0)
      value = FieldOf(ir::TupleGetItem::Cast(editable_.DefinitionOf(value)->value));
    return value;
  }

  static constexpr size_t kMostOperators = 64;

  EditableFunction& editable_;
  Tally& tally_;
  std::unordered_map<const EditableBinding*, size_t> place_;  // in the program
};

}  // namespace

void MoveOnce(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions) OneMove(function.editable.get(), tally).Run();
}

}  // namespace distir::optimize
