// Removes a sort of rows that is undone after row-wise computation.
#include "unfuse/sorted_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "ir/whole_number.h"
#include "rules/factor/axes.h"
#include "rules/operator.h"
#include "rules/registry.h"
#include "unfuse/replacer.h"
#include "unfuse/values.h"

namespace distir::unfuse {

namespace {

bool HasRank(const ir::Expr& value, int rank) {
  const ir::TensorType type = TypeOf(value);
  return type.defined() && type.ndim() == rank;
}

ir::Expr NumRows(const ir::Expr& value) { return ir::ShapeOf(TypeOf(value))[0]; }

/*! \brief True if an operator works along dimension 0 of a tensor. */
bool IsAlongRows(const ffi::Any& axis, int rank) {
  auto axes = rules::ReadAxes(axis, rank);
  return axes && axes->size() == 1 && (*axes)[0] == 0;
}

/*! \brief The tensors of a call, those of a tuple among them, in the order of its rule. */
ffi::Array<ir::Expr> RuleOperandsOf(const ir::Call& call) {
  ffi::Array<ir::Expr> operands;
  for (const ir::Expr& arg : call.args()) {
    auto tuple = ir::Tuple::Cast(arg);
    if (!tuple.defined()) {
      if (IsTensor(arg)) operands.push_back(arg);
      continue;
    }
    for (const ir::Expr& field : tuple.fields())
      if (IsTensor(field)) operands.push_back(field);
  }
  return operands;
}

/*! \brief True if a tensor has the factor as its first dimension, alone, or not at all. */
bool IsByRow(const rules::TensorFactors& factors, int rows, bool has_rows) {
  for (size_t d = 0; d < factors.size(); ++d) {
    const bool has = std::find(factors[d].begin(), factors[d].end(), rows) != factors[d].end();
    if (has != (has_rows && d == 0) || (has && factors[d].size() != 1)) return false;
  }
  return !has_rows || !factors.empty();
}

bool IsScatter(const ir::Call& call) {
  return ir::IsOp(call.op(), "relax.scatter_elements") || ir::IsOp(call.op(), "relax.scatter_nd") ||
         ir::IsOp(call.op(), "relax.index_put");
}

std::string ModeOf(const ir::Call& call) {
  if (ir::IsOp(call.op(), "relax.index_put"))
    return ir::attrs::kIndexPutAccumulate.Bool(call.attrs()) ? "add" : "update";
  return ir::IsOp(call.op(), "relax.scatter_nd")
             ? ir::attrs::kScatterNDReduction.Text(call.attrs())
             : ir::attrs::kScatterElementsReduction.Text(call.attrs());
}

bool Overwrites(const ir::Call& call) { return ModeOf(call) == "update"; }

}  // namespace

SortedRows::SortedRows(const ir::Function& function) {
  std::vector<std::pair<ir::Var, ir::Call>> ends;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    if (!call.defined()) return;
    if (ir::IsOp(call.op(), "relax.argsort") && HasRank(call.args()[0], 1))
      argsorts_.emplace_back(binding.var(), call);
    if (ir::IsOp(call.op(), "relax.take") || IsScatter(call))
      ends.emplace_back(binding.var(), call);
  });
  if (argsorts_.empty()) return;
  ir::VisitBindings(function.body(), [this](const ir::Binding& binding) {
    const auto bound = ir::VarBinding::Cast(binding);
    if (bound.defined()) values_[bound.var().get()] = bound.value();
  });
  num_uses_ = ir::CountUses(function);
  for (const auto& [var, call] : ends) {
    if (!ir::TensorType::Is(var.ty())) continue;
    std::optional<Restored> restored = ReadRestored(call);
    if (!restored) continue;
    found_.emplace(var.get(), std::move(*restored));
    if (!DropChain(call)) found_.erase(var.get());
  }
}

ir::Expr SortedRows::ValueOf(const ir::Expr& var) const {
  const ir::Expr* value = values_.Find(var.get());
  return value == nullptr ? ir::Expr() : *value;
}

ir::Expr SortedRows::WithoutCasts(ir::Expr value) const {
  for (ir::Call call = CallOf(value); call.defined() && ir::IsOp(call.op(), "relax.astype");
       call = CallOf(value))
    value = call.args()[0];
  return value;
}

ir::Var SortedRows::PermutationOf(const ir::Expr& value) const {
  const ir::Expr plain = WithoutCasts(value);
  const ir::Call call = CallOf(plain);
  const bool is_one =
      call.defined() && ir::IsOp(call.op(), "relax.argsort") && HasRank(call.args()[0], 1);
  return is_one ? ir::Var::Cast(plain) : ir::Var();
}

ir::Var SortedRows::UndoneBy(const ir::Expr& value) const {
  const ir::Call call = CallOf(WithoutCasts(value));
  if (!call.defined()) return ir::Var();
  if (ir::IsOp(call.op(), "relax.argsort") && !ir::attrs::kArgsortDescending.Bool(call.attrs()))
    return PermutationOf(call.args()[0]);
  // 0, 1, .. written to where the permutation says
  if (!IsScatter(call) || !HasRank(call.args()[0], 1) || !Overwrites(call)) return ir::Var();
  const ir::Expr positions = PositionsOf(call);
  const ir::Expr list = positions.defined() ? ListOf(positions) : ir::Expr();
  const ir::Var order = list.defined() ? PermutationOf(list) : ir::Var();
  const ir::Call range = CallOf(WithoutCasts(call.args()[2]));
  const bool counts = range.defined() && ir::IsOp(range.op(), "relax.arange") &&
                      ir::StaticDim(range.args()[0]) == 0 && ir::StaticDim(range.args()[2]) == 1;
  const bool is_whole =
      order.defined() && counts && ir::SameDim(NumRows(call.args()[0]), NumRows(order));
  return is_whole ? order : ir::Var();
}

// ---- reading

std::optional<SortedRows::Restored> SortedRows::ReadRestored(const ir::Call& call) {
  if (IsScatter(call)) return ReadScatter(call);
  const ir::Expr rows = call.args()[0];
  const ir::TensorType type = TypeOf(rows);
  if (!type.defined() || type.ndim() == 0 || !HasRank(call.args()[1], 1) ||
      !IsAlongRows(ir::attrs::kTakeAxis(call.attrs()), type.ndim()))
    return std::nullopt;
  const ir::Var order = UndoneBy(call.args()[1]);
  if (!order.defined() || !OrderOf(rows).same_as(order)) return std::nullopt;
  return Restored{order, rows, ir::Expr(), ir::Expr()};
}

std::optional<SortedRows::Restored> SortedRows::ReadScatter(const ir::Call& call) {
  const ir::Expr data = call.args()[0], rows = call.args()[2];
  const ir::Expr positions = PositionsOf(call);
  if (!positions.defined() || !TypeOf(data).defined() || !TypeOf(rows).defined() ||
      OrderOf(data).defined())
    return std::nullopt;
  const ir::Var order = OrderOf(positions);
  if (!order.defined() || !OrderOf(rows).same_as(order)) return std::nullopt;
  if (ModeOf(call) == "add") return Restored{order, rows, data, positions};
  const ir::Expr list = ListOf(positions);
  const bool is_whole = list.defined() && PermutationOf(list).defined() &&
                        ir::SameDim(NumRows(data), NumRows(order)) && Overwrites(call);
  return is_whole ? std::optional<Restored>({order, rows, ir::Expr(), ir::Expr()}) : std::nullopt;
}

ir::Expr SortedRows::PositionsOf(const ir::Call& scatter) const {
  const ir::Expr positions = scatter.args()[1];
  const ir::TensorType data = TypeOf(scatter.args()[0]);
  if (!data.defined() || data.ndim() == 0) return ir::Expr();
  if (ir::IsOp(scatter.op(), "relax.index_put")) {
    auto tuple = ir::Tuple::Cast(positions);
    const bool is_list =
        tuple.defined() && tuple.fields().size() == 1 && HasRank(tuple.fields()[0], 1);
    return is_list ? tuple.fields()[0] : ir::Expr();
  }
  const bool is_across =
      ir::IsOp(scatter.op(), "relax.scatter_elements") &&
      !IsAlongRows(ir::attrs::kScatterElementsAxis(scatter.attrs()), data.ndim());
  return TypeOf(positions).defined() && !is_across ? positions : ir::Expr();
}

ir::Expr SortedRows::ListOf(const ir::Expr& positions) const {
  if (HasRank(positions, 1)) return positions;
  const ir::Call call = CallOf(positions);
  if (!call.defined() || !TypeOf(call.args()[0]).defined()) return ir::Expr();
  const ir::TensorType from = TypeOf(call.args()[0]), to = TypeOf(positions);
  const bool same_rows = from.ndim() > 0 && to.defined() && to.ndim() > 0 &&
                         ir::SameDim(ir::ShapeOf(from)[0], ir::ShapeOf(to)[0]);
  const bool adds_ones =
      ir::IsOp(call.op(), "relax.expand_dims") || ir::IsOp(call.op(), "relax.reshape");
  const bool is_column = to.defined() && to.ndim() == 2 && ir::StaticDim(ir::ShapeOf(to)[1]) == 1;
  if (adds_ones && same_rows && is_column && from.ndim() == 1) return call.args()[0];
  return ir::IsOp(call.op(), "relax.broadcast_to") && same_rows && from.ndim() == 2
             ? ListOf(call.args()[0])
             : ir::Expr();
}

ir::Var SortedRows::OrderOf(const ir::Expr& value) {
  auto [known, is_new] = orders_.try_emplace(value.get());
  if (is_new) {
    const ir::Var order = FindOrder(value);
    orders_[value.get()] = order;
    return order;
  }
  return known->second;
}

ir::Var SortedRows::FindOrder(const ir::Expr& value) {
  if (!ir::Var::Is(value) || ir::DTensorType::Is(value.ty()) || found_.count(value.get()) > 0)
    return ir::Var();
  if (const ir::Var order = PermutationOf(value); order.defined()) return order;
  const ir::Expr bound = ValueOf(value);
  if (!bound.defined()) return ir::Var();
  if (auto item = ir::TupleGetItem::Cast(bound); item.defined()) return OrderOf(item.tuple());
  auto call = ir::Call::Cast(bound);
  return call.defined() ? OrderOfCall(call) : ir::Var();
}

ir::Var SortedRows::OrderOfCall(const ir::Call& call) {
  const rules::Operator* record = rules::FindOperator(call.op());
  if (record == nullptr || record->rule == nullptr) return ir::Var();
  if (ir::IsOp(call.op(), "relax.sort") && HasRank(call.args()[0], 1)) return OrderOfSort(call);
  for (const ir::Expr& operand : RuleOperandsOf(call))
    if (!TypeOf(operand).defined()) return ir::Var();
  if (IsTakenInOrder(call)) return PermutationOf(call.args()[1]);
  // Row by row?
  const ffi::Array<ir::Expr> operands = RuleOperandsOf(call);
  std::vector<ir::Var> orders;
  ir::Var order;
  for (const ir::Expr& operand : operands) {
    orders.push_back(OrderOf(operand));
    if (!orders.back().defined()) continue;
    if (order.defined() && !orders.back().same_as(order)) return ir::Var();
    order = orders.back();
  }
  if (!order.defined()) return ir::Var();
  const rules::OpView view = rules::ViewCall(call, call.ty());
  for (const ir::TensorType& result : view.results)
    if (!ir::HasKnownShape(result)) return ir::Var();
  const rules::FactorRule rule = rules::RuleOf(view);
  if (rule.operands.size() != operands.size()) return ir::Var();
  int rows = -1;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!orders[i].defined()) continue;
    const rules::TensorFactors& factors = rule.operands[i];
    if (factors.empty() || factors[0].size() != 1 || (rows >= 0 && factors[0][0] != rows))
      return ir::Var();
    rows = factors[0][0];
  }
  if (!rule.factors[rows].Is<rules::ParallelFactor>()) return ir::Var();
  for (size_t i = 0; i < operands.size(); ++i)
    if (!IsByRow(rule.operands[i], rows, orders[i].defined())) return ir::Var();
  for (const rules::TensorFactors& result : rule.results)
    if (!IsByRow(result, rows, true)) return ir::Var();
  return order;
}

ir::Var SortedRows::OrderOfSort(const ir::Call& call) const {
  for (const auto& [var, argsort] : argsorts_) {
    if (argsort.args()[0].same_as(call.args()[0]) &&
        ir::attrs::kArgsortDescending.Bool(argsort.attrs()) ==
            ir::attrs::kSortDescending.Bool(call.attrs()))
      return var;
  }
  return ir::Var();
}

bool SortedRows::IsTakenInOrder(const ir::Call& call) const {
  if (!ir::IsOp(call.op(), "relax.take")) return false;
  const ir::TensorType type = TypeOf(call.args()[0]);
  const ir::Var order = PermutationOf(call.args()[1]);
  return order.defined() && type.defined() && type.ndim() > 0 &&
         IsAlongRows(ir::attrs::kTakeAxis(call.attrs()), type.ndim()) &&
         ir::SameDim(ir::ShapeOf(type)[0], NumRows(order));
}

/*! \brief Notes what nothing uses any more. False if a value that is computed of rows would be
 * computed twice. */
bool SortedRows::DropChain(const ir::Call& call) {
  std::unordered_map<const ffi::Object*, int> uses = num_uses_;
  std::unordered_set<const ffi::Object*> unused;
  std::unordered_set<const ffi::Object*> kept;  // what values in their own order are
  std::vector<ir::Expr> rest = {call}, seen;
  while (!rest.empty()) {
    const ir::Expr value = rest.back();
    rest.pop_back();
    auto used = ir::Call::Cast(value);
    if (used.defined() && !used.same_as(call) &&
        (IsTakenInOrder(used) || ir::IsOp(used.op(), "relax.sort")))
      kept.insert(used.args()[0].get());
    ir::VisitUses(value, [&](const ir::Var& var) {
      if (ValueOf(var).defined() && OrderOf(var).defined()) seen.push_back(var);
      if (--uses[var.get()] > 0 || kept.count(var.get()) > 0) return;
      const ir::Expr bound = ValueOf(var);
      const bool is_undone = UndoneBy(var).defined();
      if (!bound.defined() || !(OrderOf(var).defined() || is_undone)) return;
      unused.insert(var.get());
      rest.push_back(bound);
    });
  }
  for (const ir::Expr& var : seen) {
    const ir::TensorType type = TypeOf(var);
    const bool is_computed =
        !type.defined() || type.dtype().code == kDLFloat || type.dtype().code == kDLBfloat;
    if (is_computed && unused.count(var.get()) == 0) return false;
  }
  for (const ffi::Object* var : unused) unused_.insert(var);
  num_uses_ = std::move(uses);
  return true;
}

// ---- writing

ir::Expr SortedRows::Write(const ir::Var& var, const Emit& emit) const {
  const Restored& restored = found_.at(var.get());
  Written written;
  if (restored.data.defined()) return AddedUp(restored, CallOf(var), emit, &written);
  return InOwnOrder(restored.rows, emit, &written);
}

int64_t SortedRows::DividedBy(const ir::Expr& value) const {
  const ir::Call call = CallOf(WithoutCasts(value));
  if (!call.defined() || !ir::IsOp(call.op(), "relax.floor_divide") ||
      !PermutationOf(call.args()[0]).defined())
    return 0;
  return std::max<int64_t>(ir::WholeNumber(call.args()[1]).value_or(0), 0);
}

ir::Expr SortedRows::InOwnOrder(const ir::Expr& value, const Emit& emit, Written* written) const {
  if (auto known = written->find(value.get()); known != written->end()) return known->second;
  auto order = orders_.find(value.get());
  if (order == orders_.end() || !order->second.defined()) return value;
  ir::Expr result;
  auto item = ir::TupleGetItem::Cast(ValueOf(value));
  const ir::Call call = CallOf(value);
  if (item.defined()) {
    result = emit(ir::MakeTupleGetItem(InOwnOrder(item.tuple(), emit, written), item.index()));
  } else if (PermutationOf(value).defined()) {
    const ir::TensorType type = TypeOf(value);
    result = emit(
        Typed(ir::make::kArange(ir::MakeInt(0), NumRows(value), ir::MakeInt(1), type.dtype())));
  } else if (ir::IsOp(call.op(), "relax.sort")) {
    result = call.args()[0];
  } else if (IsTakenInOrder(call)) {
    result = call.args()[0];
  } else if (ir::Expr repeated = Repeated(call, emit); repeated.defined()) {
    result = repeated;
  } else {
    ffi::Array<ir::Expr> args;
    for (const ir::Expr& arg : call.args()) {
      auto tuple = ir::Tuple::Cast(arg);
      if (!tuple.defined()) {
        args.push_back(InOwnOrder(arg, emit, written));
        continue;
      }
      ffi::Array<ir::Expr> fields;
      for (const ir::Expr& field : tuple.fields())
        fields.push_back(InOwnOrder(field, emit, written));
      args.push_back(ir::MakeTuple(fields));
    }
    result =
        emit(ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args(), call.span()));
  }
  written->emplace(value.get(), result);
  return result;
}

/*! \brief Repeats rows for x[order // k]: each row of x k times; null for other calls. */
ir::Expr SortedRows::Repeated(const ir::Call& take, const Emit& emit) const {
  if (!ir::IsOp(take.op(), "relax.take")) return ir::Expr();
  const ir::Expr x = take.args()[0];
  const int64_t times = DividedBy(take.args()[1]);
  const ir::TensorType type = TypeOf(x);
  if (times == 0 || !type.defined() || type.ndim() == 0 ||
      !IsAlongRows(ir::attrs::kTakeAxis(take.attrs()), type.ndim()) ||
      !ir::SameDim(ir::Multiply(ir::ShapeOf(type)[0], times), NumRows(take.args()[1])))
    return ir::Expr();
  ffi::Array<ir::Expr> wide = {ir::ShapeOf(type)[0], ir::MakeInt(times)};
  ffi::Array<ir::Expr> shape = {NumRows(take.args()[1])};
  for (int d = 1; d < type.ndim(); ++d) {
    wide.push_back(ir::ShapeOf(type)[d]);
    shape.push_back(ir::ShapeOf(type)[d]);
  }
  const ir::Expr apart = emit(Typed(ir::make::kExpandDims(x, ffi::Array<int64_t>{1})));
  const ir::Expr all = emit(Typed(ir::make::kBroadcastTo(apart, ir::MakeShape(wide))));
  return emit(Typed(ir::make::kReshape(all, ir::MakeShape(shape))));
}

ir::Expr SortedRows::AddedUp(const Restored& restored, const ir::Call& call, const Emit& emit,
                             Written* written) const {
  const ir::Expr rows = InOwnOrder(restored.rows, emit, written);
  const ir::TensorType type = TypeOf(restored.rows);
  const ir::Expr list = ListOf(restored.positions);
  const int64_t times = list.defined() ? DividedBy(list) : 0;
  if (times > 0 &&
      ir::SameDim(ir::Multiply(NumRows(restored.data), times), NumRows(restored.rows))) {
    ffi::Array<ir::Expr> apart = {NumRows(restored.data), ir::MakeInt(times)};
    for (int d = 1; d < type.ndim(); ++d) apart.push_back(ir::ShapeOf(type)[d]);
    const ir::Expr of_each = emit(Typed(ir::make::kReshape(rows, ir::MakeShape(apart))));
    const ir::Expr sum = emit(Typed(ir::make::kSum(of_each, ffi::Array<int64_t>{1}, false)));
    return emit(Typed(ir::make::kAdd(restored.data, sum)));
  }
  ir::Expr positions = InOwnOrder(restored.positions, emit, written);
  if (ir::Tuple::Is(call.args()[1])) positions = ir::MakeTuple({positions});
  return emit(ir::MakeCall(call.ty(), call.op(), {restored.data, positions, rows}, call.attrs(),
                           call.ty_args(), call.span()));
}

ir::IRModule KeepOwnOrder(const ir::IRModule& mod) {
  return ir::RewriteFunctions(mod, [](const ir::Function& function) {
    return Replacer<SortedRows>(function, "relax.take", "sorted rows").Run(function);
  });
}

}  // namespace distir::unfuse
