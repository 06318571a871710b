#include "split/combined_products.h"

#include <algorithm>
#include <optional>

#include "dialect/operators/annotation.h"
#include "ir/build.h"
#include "ir/operator_attrs.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"
#include "rules/factor/axes.h"
#include "rules/operator.h"

namespace distir {
namespace split {

namespace {

/*! \brief The type of a tensor whose sharding may be stated; null where its shape is not known. */
ir::TensorType TypeOf(const ir::Expr& value) {
  auto type = ir::TensorType::Cast(rules::StripDistribution(value.ty()));
  return type.defined() && ir::HasKnownShape(type) ? type : ir::TensorType();
}

bool IsTensor(const ir::Expr& value) {
  return ir::TensorType::Is(value.ty()) || ir::DTensorType::Is(value.ty());
}

/*! \brief The size of the last dimension; 1 for a number, -1 where it is not known. */
int64_t WidthOf(const ir::Expr& value) {
  const ir::TensorType type = TypeOf(value);
  if (!type.defined()) return -1;
  return type.ndim() == 0 ? 1 : ir::StaticDim(ir::ShapeOf(type)[type.ndim() - 1]);
}

/*! \brief Whether an attribute names the last dimension of a value, alone. */
bool IsLast(const ffi::Any& axis, const ir::Expr& value) {
  const ir::TensorType type = TypeOf(value);
  if (!type.defined() || type.ndim() == 0) return false;
  auto axes = rules::ReadAxes(axis, type.ndim());
  return axes && axes->size() == 1 && (*axes)[0] == type.ndim() - 1;
}

}  // namespace

CombinedProducts::CombinedProducts(const ir::Function& function) {
  std::vector<std::pair<ir::Var, ir::Call>> splits;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    if (call.defined() && ir::IsOp(call.op(), "relax.split"))
      splits.emplace_back(binding.var(), call);
  });
  if (splits.empty()) return;
  ir::VisitBindings(function.body(), [this](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    if (call.defined()) calls_.emplace(binding.var().get(), call);
  });
  num_uses_ = ir::CountUses(function);
  for (const auto& [var, call] : splits) {
    std::optional<Split> split = ReadSplit(call);
    bool has_product = false;
    std::vector<ir::Var> chain;
    if (!split || !IsJoined(split->value, *split, &has_product, &chain) || !has_product) continue;
    for (const ir::Var& used : chain) unused_.insert(used.get());
    found_.emplace(var.get(), std::move(*split));
  }
}

std::optional<CombinedProducts::Split> CombinedProducts::ReadSplit(const ir::Call& call) {
  Split split{call.args()[0], {}};
  auto parts = ir::TupleType::Cast(call.ty());
  if (!parts.defined() || !IsLast(ir::attrs::kSplitAxis(call.attrs()), split.value))
    return std::nullopt;
  for (const ir::Type& part : parts.fields()) {
    auto type = ir::TensorType::Cast(part);
    if (!type.defined() || !ir::HasKnownShape(type)) return std::nullopt;
    split.widths.push_back(ir::StaticDim(ir::ShapeOf(type)[type.ndim() - 1]));
    if (split.widths.back() <= 0) return std::nullopt;
  }
  return split;
}

ir::Call CombinedProducts::CallOf(const ir::Expr& value) const {
  auto found = calls_.find(value.get());
  return found == calls_.end() ? ir::Call() : found->second;
}

bool CombinedProducts::IsJoined(const ir::Expr& value, const Split& split, bool* has_product,
                                std::vector<ir::Var>* chain) {
  const ir::Call call = CallOf(value);
  // What others use too would be computed twice; a DTensor is decided already.
  if (!call.defined() || !ir::TensorType::Is(value.ty()) || num_uses_[value.get()] != 1)
    return false;
  chain->push_back(ir::Var::Cast(value));
  return IsJoinedCall(call, split, has_product, chain);
}

bool CombinedProducts::IsJoinedCall(const ir::Call& call, const Split& split, bool* has_product,
                                    std::vector<ir::Var>* chain) {
  if (ir::IsOp(call.op(), "relax.concat")) {
    auto fields = ir::Tuple::Cast(call.args()[0]);
    if (!fields.defined() || fields.fields().size() != split.widths.size() ||
        !IsLast(ir::attrs::kConcatAxis(call.attrs()), fields.fields()[0]))
      return false;
    for (size_t i = 0; i < split.widths.size(); ++i) {
      if (WidthOf(fields.fields()[i]) != split.widths[i]) return false;
    }
    return true;
  }
  if (ir::IsOp(call.op(), "relax.matmul")) {
    *has_product = true;
    const ir::TensorType matrix = TypeOf(call.args()[1]);
    return matrix.defined() && matrix.ndim() > 1 &&
           IsJoined(call.args()[1], split, has_product, chain);
  }
  const rules::Operator* record = rules::FindOperator(call.op());
  // An annotation is of all parts together.
  if (record == nullptr || !record->is_elementwise || dialect::IsAnnotation(call)) return false;
  int64_t joined = 0;
  for (const ir::Expr& arg : call.args()) {
    if (!IsTensor(arg)) continue;
    const int64_t width = WidthOf(arg);
    if (width == 1) continue;
    if (!IsJoined(arg, split, has_product, chain)) return false;
    ++joined;
  }
  return joined > 0;
}

std::vector<ir::Expr> CombinedProducts::Write(const ir::Var& var, const Emit& emit) const {
  const Split& split = found_.at(var.get());
  std::vector<ir::Expr> parts;
  for (size_t i = 0; i < split.widths.size(); ++i)
    parts.push_back(PartOf(split.value, i, split, emit));
  return parts;
}

ir::Expr CombinedProducts::PartOf(const ir::Expr& value, size_t part, const Split& split,
                                  const Emit& emit) const {
  const ir::Call call = CallOf(value);
  if (ir::IsOp(call.op(), "relax.concat")) return ir::Tuple::Cast(call.args()[0]).fields()[part];
  ffi::Array<ir::Expr> args = call.args();
  for (size_t i = 0; i < args.size(); ++i) {
    const bool is_left = i == 0 && ir::IsOp(call.op(), "relax.matmul");
    if (!is_left && IsTensor(args[i]) && WidthOf(args[i]) != 1)
      args.Set(i, PartOf(args[i], part, split, emit));
  }
  const ir::Call made =
      ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args(), call.span());
  return emit(ir::MakeCall(rules::InferGlobalType(made), made.op(), args, made.attrs(),
                           made.ty_args(), made.span()));
}

}  // namespace split
}  // namespace distir
