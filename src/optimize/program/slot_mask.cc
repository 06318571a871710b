// Recognises masks that put each token into few slots.
#include "optimize/program/slot_mask.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/whole_number.h"
#include "rules/factor/factor_rule.h"
#include "rules/registry.h"

namespace distir::optimize {

bool IsOneOf(const ir::Call& call, const std::set<std::string>& names) {
  auto op = ir::Op::Cast(call.op());
  return op.defined() && names.count(static_cast<std::string>(op.name())) > 0;
}

namespace {

ffi::Array<ir::Expr> Operands(const ir::Call& call) {
  auto tuple = call.args().empty() ? ir::Tuple() : ir::Tuple::Cast(call.args()[0]);
  return tuple.defined() ? tuple.fields() : call.args();
}

int RankOf(const ir::Expr& value) {
  auto type = ir::DTensorType::Cast(value.ty());
  return type.defined() ? type.tensor_ty().ndim() : -1;
}

/*! \brief A column beside a row: elements of both differ in their dimensions. */
bool ComparesAcross(const ir::Call& call) {
  const int rank = RankOf(call);
  if (rank < 2) return false;
  for (const ir::Expr& arg : call.args()) {
    auto type = ir::DTensorType::Cast(arg.ty());
    if (!type.defined() || type.tensor_ty().ndim() == 0 || !ir::HasKnownShape(type.tensor_ty()))
      return false;
    const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type.tensor_ty());
    bool is_whole = static_cast<int>(shape.size()) == rank;
    for (const ir::Expr& size : shape) is_whole = is_whole && ir::StaticDim(size) != 1;
    if (is_whole) return false;
  }
  return true;
}

}  // namespace

bool SlotMasks::MayBeIn(const std::vector<EditableBinding*>& bindings) {
  return std::any_of(bindings.begin(), bindings.end(), [](const EditableBinding* binding) {
    const ir::Call* call = ir::Call::As(binding->value);
    return call != nullptr &&
           (ir::IsOp(call->op(), "relax.one_hot") || ir::IsOp(call->op(), "relax.equal") ||
            ir::IsOp(call->op(), "relax.scatter_elements"));
  });
}

int64_t SlotMasks::Choices(const ir::Expr& value) {
  if (auto known = known_.find(value.get()); known != known_.end()) return known->second;
  EditableBinding* binding = editable_.DefinitionOf(value);
  auto call = binding == nullptr ? ir::Call() : ir::Call::Cast(binding->value);
  const int64_t found = call.defined() ? Find(call) : 0;
  known_[value.get()] = found;
  return found;
}

int64_t SlotMasks::Find(const ir::Call& call) {
  static const std::set<std::string> kUnary = {
      "relax.astype",  "relax.reshape",       "relax.permute_dims", "relax.expand_dims",
      "relax.squeeze", "relax.broadcast_to",  "relax.not_equal",    "relax.greater",
      "relax.divide",  "relax.strided_slice", "relax.abs",          "relax.negative",
      "relax.nn.pad",
  };
  static const std::set<std::string> kProducts = {"relax.multiply", "relax.logical_and",
                                                  "relax.bitwise_and", "relax.minimum"};
  static const std::set<std::string> kSums = {"relax.add", "relax.maximum", "relax.logical_or",
                                              "relax.bitwise_or", "relax.subtract"};
  if (IsOneOf(call, {"relax.one_hot"})) return 1;
  if (IsOneOf(call, {"relax.equal"})) return ComparesAcross(call) ? 1 : 0;
  if (IsOneOf(call, kUnary)) return Choices(call.args()[0]);
  if (auto kind = dialect::DTensorCollective(call.op()); kind.has_value())
    return dialect::ReduceAxes(call).empty() ? Choices(call.args()[0]) : 0;
  if (IsOneOf(call, {"relax.where"})) {
    const int64_t of_condition = Choices(call.args()[0]);
    return of_condition > 0 ? of_condition : Choices(call.args()[1]) + Choices(call.args()[2]);
  }
  if (IsOneOf(call, {"relax.scatter_elements"})) {
    auto ids = ir::DTensorType::Cast(call.args()[1].ty());
    if (!IsZero(call.args()[0]) || !ids.defined() || !ir::HasKnownShape(ids.tensor_ty()) ||
        ids.tensor_ty().ndim() == 0)
      return 0;
    return std::max<int64_t>(ir::StaticDim(ir::ShapeOf(ids.tensor_ty()).back()), 0);
  }
  int64_t least = 0, sum = 0;
  bool are_all = true;
  if (IsOneOf(call, kProducts) || IsOneOf(call, kSums)) {
    for (const ir::Expr& arg : call.args()) {
      const int64_t of_arg = Choices(arg);
      are_all = are_all && of_arg > 0;
      sum += of_arg;
      if (of_arg > 0) least = least == 0 ? of_arg : std::min(least, of_arg);
    }
    return IsOneOf(call, kProducts) ? least : (are_all ? sum : 0);
  }
  if (IsOneOf(call, {"relax.sum", "relax.max", "relax.matmul", "relax.einsum"}))
    return OfReduction(call);
  return 0;
}

bool SlotMasks::IsZero(const ir::Expr& value) const {
  static const std::set<std::string> kOfFirst = {
      "relax.astype",  "relax.broadcast_to", "relax.expand_dims",  "relax.permute_dims",
      "relax.reshape", "relax.squeeze",      "relax.strided_slice"};
  if (ir::Constant::Is(value)) return ir::WholeNumber(value) == 0;
  EditableBinding* binding = editable_.DefinitionOf(value);
  auto call = binding == nullptr ? ir::Call::Cast(value) : ir::Call::Cast(binding->value);
  if (!call.defined()) return false;
  if (IsOneOf(call, {"relax.zeros", "relax.zeros_like"})) return true;
  if (IsOneOf(call, {"relax.full"})) return IsZero(call.args()[1]);
  if (IsOneOf(call, {"relax.where"})) return IsZero(call.args()[1]) && IsZero(call.args()[2]);
  if (IsOneOf(call, {"relax.concat"})) {
    for (const ir::Expr& operand : Operands(call))
      if (!IsZero(operand)) return false;
    return true;
  }
  const bool moves = dialect::DTensorCollective(call.op()).has_value() ||
                     ir::IsOp(call.op(), "relax.dist.redistribute") || IsOneOf(call, kOfFirst);
  return moves && IsZero(call.args()[0]);
}

int64_t SlotMasks::OfReduction(const ir::Call& call) {
  int64_t least = 0;
  for (const ir::Expr& operand : Operands(call)) {
    if (RankOf(operand) < 0) continue;
    const int64_t choices = Choices(operand);
    if (choices == 0) return 0;
    least = least == 0 ? choices : std::min(least, choices);
  }
  for (const rules::Factor& factor : rules::RuleOf(rules::ViewCall(call, call.ty())).factors) {
    if (factor.reduction() != mesh::Reduction::kNone) least *= std::max<int64_t>(factor.size, 1);
  }
  return least;
}

}  // namespace distir::optimize
