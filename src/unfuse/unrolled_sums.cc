// Joins sums written term by term over slices of a sharded tensor.
#include "unfuse/unrolled_sums.h"

#include <algorithm>
#include <set>
#include <utility>

#include "dialect/operators/annotation.h"
#include "dialect/operators/collective.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "ir/whole_number.h"
#include "rules/factor/axes.h"
#include "rules/operator.h"
#include "unfuse/replacer.h"
#include "unfuse/values.h"

namespace distir::unfuse {

namespace {

int RankOf(const ir::Expr& value) { return TypeOf(value).ndim(); }

/*! \brief The dimension that an attribute names, of a tensor; -1 where it is not one. */
int OneDim(const ffi::Any& attr, int rank) {
  auto axes = rules::ReadAxes(attr, rank);
  return axes && axes->size() == 1 ? (*axes)[0] : -1;
}

/*! \brief The one integer of an argument; -1 where it is none. */
int64_t OneOf(const ir::Expr& tuple) {
  auto numbers = rules::IntegersOf(tuple);
  return numbers && numbers->size() == 1 ? (*numbers)[0] : -1;
}

/*! \brief True if a type is a tensor of a known shape, not placed yet, or a tuple of such. */
bool IsKnown(const ir::Type& type) {
  return !ir::AnyLeaf(type, [](const ir::Type& leaf) {
    auto tensor = ir::TensorType::Cast(leaf);
    return !tensor.defined() || !ir::HasKnownShape(tensor);
  });
}

/*! \brief True if the parts of a split have static extents along the dimension that is split. */
bool HasStaticParts(const ir::Call& split) {
  const int dim = OneDim(ir::attrs::kSplitAxis(split.attrs()), RankOf(split.args()[0]));
  return dim >= 0 && !ir::AnyLeaf(split.ty(), [dim](const ir::Type& leaf) {
           return ir::StaticDim(ir::ShapeOf(ir::TensorType::Cast(leaf))[dim]) < 0;
         });
}

bool IsSumOfTwo(const ir::Call& call) {
  return call.defined() && ir::IsOp(call.op(), "relax.add") && ir::TensorType::Is(call.ty());
}

}  // namespace

UnrolledSums::UnrolledSums(const ir::Function& function) {
  std::vector<std::pair<ir::Var, ir::Call>> sums;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    const auto bound = ir::VarBinding::Cast(binding);
    if (!bound.defined()) return;
    values_[bound.var().get()] = bound.value();
    if (auto made = ReadMade(bound.var(), bound.value())) made_.emplace(bound.var().get(), *made);
    if (auto call = ir::Call::Cast(bound.value()); IsSumOfTwo(call))
      sums.emplace_back(bound.var(), call);
  });
  const bool any = std::any_of(made_.begin(), made_.end(),
                               [](const auto& made) { return made.second.is_sharded; });
  if (!any) return;
  num_uses_ = ir::CountUses(function);
  // The last sum of a chain has all terms.
  std::reverse(sums.begin(), sums.end());
  for (const auto& [var, call] : sums) {
    if (unused_.count(var.get()) > 0) continue;
    std::unordered_set<const ffi::Object*> kept;
    std::optional<Sum> sum = ReadSum(call, &kept);
    if (!sum) continue;
    found_.emplace(var.get(), std::move(*sum));
    DropUnused(call, kept);
  }
}

ir::Expr UnrolledSums::ValueOf(const ir::Expr& var) const {
  const ir::Expr* value = values_.Find(var.get());
  return value == nullptr ? ir::Expr() : *value;
}

// ---- reading

std::optional<UnrolledSums::Slice> UnrolledSums::ReadSlice(const ir::Expr& value) const {
  const ir::Call call = CallOf(value);
  if (!call.defined() || call.args().empty() || !TypeOf(call.args()[0]).defined())
    return std::nullopt;
  const int rank = RankOf(call.args()[0]);
  if (ir::IsOp(call.op(), "relax.take")) {
    auto index = ir::WholeNumber(call.args()[1]);
    const int dim = OneDim(ir::attrs::kTakeAxis(call.attrs()), rank);
    if (!index || *index < 0 || dim < 0) return std::nullopt;
    return Slice{call.args()[0], dim, *index, false};
  }
  if (ir::IsOp(call.op(), "relax.squeeze")) {
    auto slice = ReadSlice(call.args()[0]);
    if (!slice || !slice->keeps_dim ||
        OneDim(ir::attrs::kSqueezeAxis(call.attrs()), rank) != slice->dim)
      return std::nullopt;
    slice->keeps_dim = false;
    return slice;
  }
  if (!ir::IsOp(call.op(), "relax.strided_slice")) return std::nullopt;
  const int64_t dim = OneOf(call.args()[1]), begin = OneOf(call.args()[2]);
  if (dim < 0 || begin < 0 || OneOf(call.args()[3]) != begin + 1) return std::nullopt;
  if (call.args().size() > 4 && OneOf(call.args()[4]) != 1) return std::nullopt;
  return Slice{call.args()[0], static_cast<int>(dim), begin, true};
}

bool UnrolledSums::IsShardedAlong(const Slice& slice) const {
  ir::Placement placement;
  if (auto type = ir::DTensorType::Cast(slice.base.ty()); type.defined()) {
    placement = type.placement();
  } else if (const ir::Call call = CallOf(slice.base); dialect::IsAnnotation(call)) {
    placement = dialect::TargetPlacement(call);
  } else {
    return false;
  }
  const std::vector<int> dims = dialect::PlacementDims(placement);
  return std::find(dims.begin(), dims.end(), slice.dim) != dims.end();
}

std::optional<UnrolledSums::Sum> UnrolledSums::ReadSum(
    const ir::Call& sum, std::unordered_set<const ffi::Object*>* kept) {
  std::vector<ir::Expr> terms, rest = {sum.args()[1], sum.args()[0]};
  while (!rest.empty()) {
    const ir::Expr value = rest.back();
    rest.pop_back();
    const ir::Call inner = CallOf(value);
    const bool is_of_chain = IsSumOfTwo(inner) && num_uses_[value.get()] == 1 &&
                             ir::StructurallyEqual(inner.ty(), sum.ty());
    if (is_of_chain) {
      rest.push_back(inner.args()[1]);
      rest.push_back(inner.args()[0]);
    } else {
      terms.push_back(value);
    }
  }
  Sum found;
  std::optional<Made> first;
  std::set<int64_t> indices;
  for (const ir::Expr& term : terms) {
    auto made = MadeOf(term);
    const bool may_be = made && made->is_sharded && num_uses_[term.get()] == 1 &&
                        ir::StructurallyEqual(term.ty(), sum.ty());
    if (may_be && !first) {
      first = made;
      found.term = term;
    }
    const bool is_one = may_be && made->extent == first->extent &&
                        IsAlike(found.term, term, first->index, made->index, kept);
    if (is_one && !indices.insert(made->index).second) return std::nullopt;
    if (!is_one) found.others.push_back(term);
  }
  // Every slice once
  const bool is_whole = first && static_cast<int64_t>(indices.size()) == first->extent;
  return is_whole ? std::optional<Sum>(std::move(found)) : std::nullopt;
}

std::optional<UnrolledSums::Made> UnrolledSums::MadeOf(const ir::Expr& value) const {
  auto found = made_.find(value.get());
  return found == made_.end() ? std::nullopt : std::optional<Made>(found->second);
}

std::optional<UnrolledSums::Made> UnrolledSums::ReadMade(const ir::Var& var,
                                                         const ir::Expr& value) const {
  if (auto slice = ReadSlice(var)) {
    const int64_t extent = ir::StaticDim(ir::ShapeOf(TypeOf(slice->base))[slice->dim]);
    if (extent < 2 || slice->index >= extent) return std::nullopt;
    return Made{slice->index, extent, IsShardedAlong(*slice)};
  }
  if (auto item = ir::TupleGetItem::Cast(value); item.defined()) return MadeOf(item.tuple());
  auto call = ir::Call::Cast(value);
  if (!call.defined() || !MayTogether(call)) return std::nullopt;
  std::optional<Made> made;
  for (const ir::Expr& arg : call.args()) {
    auto of_arg = MadeOf(arg);
    if (!of_arg) continue;
    if (made && (made->index != of_arg->index || made->extent != of_arg->extent))
      return std::nullopt;
    of_arg->is_sharded = of_arg->is_sharded || (made && made->is_sharded);
    made = of_arg;
  }
  return made;
}

bool UnrolledSums::MayTogether(const ir::Call& call) const {
  for (const ir::Expr& arg : call.args()) {
    if (IsTensor(arg) && !TypeOf(arg).defined()) return false;
  }
  if (!IsKnown(call.ty())) return false;
  if (ir::IsOp(call.op(), "relax.matmul"))
    return RankOf(call.args()[0]) > 1 && RankOf(call.args()[1]) > 1;
  if (ir::IsOp(call.op(), "relax.permute_dims") || ir::IsOp(call.op(), "relax.reshape"))
    return true;
  if (ir::IsOp(call.op(), "relax.split")) return HasStaticParts(call);
  const rules::Operator* record = rules::FindOperator(call.op());
  return record != nullptr && record->is_elementwise && !record->takes_tuple &&
         !dialect::IsAnnotation(call);
}

bool UnrolledSums::IsAlike(const ir::Expr& first, const ir::Expr& value, int64_t first_index,
                           int64_t index, std::unordered_set<const ffi::Object*>* kept) const {
  if (!ir::Var::Is(first) || !ir::Var::Is(value)) return ir::StructurallyEqual(first, value);
  auto slice = ReadSlice(first), other = ReadSlice(value);
  if (slice && other && slice->index == first_index && other->index == index) {
    kept->insert(slice->base.get());
    return slice->base.same_as(other->base) && slice->dim == other->dim &&
           slice->keeps_dim == other->keeps_dim;
  }
  if (first.same_as(value) && !MadeOf(first)) {
    kept->insert(first.get());
    return true;
  }
  auto item = ir::TupleGetItem::Cast(ValueOf(first));
  auto item_of = ir::TupleGetItem::Cast(ValueOf(value));
  if (item.defined() && item_of.defined()) {
    return item.index() == item_of.index() &&
           IsAlike(item.tuple(), item_of.tuple(), first_index, index, kept);
  }
  const ir::Call call = CallOf(first), call_of = CallOf(value);
  if (!MadeOf(first) || !call.defined() || !call_of.defined() || !call.op().same_as(call_of.op()) ||
      call.args().size() != call_of.args().size() || !MayTogether(call) ||
      !ir::StructurallyEqual(call.ty(), call_of.ty()) ||
      !ir::StructurallyEqual(call.attrs(), call_of.attrs()))
    return false;
  for (size_t i = 0; i < call.args().size(); ++i) {
    if (!IsAlike(call.args()[i], call_of.args()[i], first_index, index, kept)) return false;
  }
  return true;
}

void UnrolledSums::DropUnused(const ir::Call& sum,
                              const std::unordered_set<const ffi::Object*>& kept) {
  std::vector<ir::Expr> rest = {sum};
  while (!rest.empty()) {
    const ir::Expr value = rest.back();
    rest.pop_back();
    ir::VisitUses(value, [&](const ir::Var& var) {
      if (--num_uses_[var.get()] > 0 || kept.count(var.get()) > 0) return;
      const ir::Expr bound = ValueOf(var);
      auto call = ir::Call::Cast(bound);
      const bool may_go = ir::TupleGetItem::Is(bound) ||
                          (call.defined() && (MayTogether(call) || ReadSlice(var).has_value()));
      if (!may_go || !unused_.insert(var.get()).second) return;
      rest.push_back(bound);
    });
  }
}

// ---- writing

ir::Expr UnrolledSums::Write(const ir::Var& var, const Emit& emit) const {
  const Sum& sum = found_.at(var.get());
  Written written;
  const ir::Expr terms = Together(sum.term, emit, &written);
  ir::Expr total = emit(Typed(ir::make::kSum(terms, ffi::Array<int64_t>{0}, false)));
  for (const ir::Expr& other : sum.others) total = emit(Typed(ir::make::kAdd(total, other)));
  return total;
}

/*! \brief The value for all slices, which are a dimension in front; null where it has none. */
ir::Expr UnrolledSums::Together(const ir::Expr& value, const Emit& emit, Written* written) const {
  if (!MadeOf(value)) return ir::Expr();
  if (auto known = written->find(value.get()); known != written->end()) return known->second;
  ir::Expr result;
  if (auto slice = ReadSlice(value)) {
    result = AllOf(*slice, emit);
  } else if (auto item = ir::TupleGetItem::Cast(ValueOf(value)); item.defined()) {
    const ir::Expr tuple = Together(item.tuple(), emit, written);
    if (tuple.defined()) result = emit(ir::MakeTupleGetItem(tuple, item.index()));
  } else if (const ir::Call call = CallOf(value); call.defined() && MayTogether(call)) {
    result = TogetherCall(call, emit, written);
  }
  written->emplace(value.get(), result);
  return result;
}

ir::Expr UnrolledSums::TogetherCall(const ir::Call& call, const Emit& emit,
                                    Written* written) const {
  ffi::Array<ir::Expr> args;
  int64_t extent = -1;
  for (const ir::Expr& arg : call.args()) {
    const ir::Expr all = ir::Var::Is(arg) ? Together(arg, emit, written) : ir::Expr();
    if (all.defined()) extent = ir::StaticDim(ir::ShapeOf(TypeOf(all))[0]);
    args.push_back(all.defined() ? all : arg);
  }
  if (extent < 0) return ir::Expr();
  if (ir::IsOp(call.op(), "relax.permute_dims")) {
    auto axes = rules::ReadAxes(ir::attrs::kPermuteDimsAxes(call.attrs()), RankOf(call.args()[0]));
    ffi::Array<int64_t> moved = {0};
    for (int dim = 0; dim < RankOf(call.args()[0]); ++dim)
      moved.push_back(1 + (axes ? (*axes)[dim] : RankOf(call.args()[0]) - 1 - dim));
    return emit(Typed(ir::make::kPermuteDims(args[0], moved)));
  }
  if (ir::IsOp(call.op(), "relax.reshape")) {
    ffi::Array<ir::Expr> shape = {ir::MakeInt(extent)};
    for (const ir::Expr& size : ir::ShapeOf(ir::TensorType::Cast(call.ty()))) shape.push_back(size);
    return emit(Typed(ir::make::kReshape(args[0], ir::MakeShape(shape))));
  }
  if (ir::IsOp(call.op(), "relax.split")) {
    const int dim = OneDim(ir::attrs::kSplitAxis(call.attrs()), RankOf(call.args()[0]));
    ffi::Array<ir::Expr> ends;
    int64_t end = 0;
    for (const ir::Type& part : ir::TupleType::Cast(call.ty()).fields()) {
      end += ir::StaticDim(ir::ShapeOf(ir::TensorType::Cast(part))[dim]);
      ends.push_back(ir::MakeInt(end));
    }
    ends.pop_back();
    return emit(Typed(ir::make::kSplit(args[0], ends, int64_t(dim + 1))));
  }
  // Of fewer dimensions than the result, a value would be broadcast along the slices.
  const int rank = ir::TensorType::Cast(call.ty()).ndim();
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].same_as(call.args()[i]) || !IsTensor(args[i])) continue;
    ffi::Array<int64_t> ones;
    for (int d = RankOf(call.args()[i]); d < rank; ++d)
      ones.push_back(1 + d - RankOf(call.args()[i]));
    if (!ones.empty()) args.Set(i, emit(Typed(ir::make::kExpandDims(args[i], ones))));
  }
  const ir::Call made =
      ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args(), call.span());
  return emit(Typed(made));
}

ir::Expr UnrolledSums::AllOf(const Slice& slice, const Emit& emit) const {
  ir::Expr all = slice.base;
  if (slice.dim > 0) {
    ffi::Array<int64_t> axes = {slice.dim};
    for (int d = 0; d < RankOf(slice.base); ++d) {
      if (d != slice.dim) axes.push_back(d);
    }
    all = emit(Typed(ir::make::kPermuteDims(all, axes)));
  }
  if (!slice.keeps_dim) return all;
  return emit(Typed(ir::make::kExpandDims(all, ffi::Array<int64_t>{slice.dim + 1})));
}

ir::IRModule JoinTerms(const ir::IRModule& mod) {
  return ir::RewriteFunctions(mod, [](const ir::Function& function) {
    return Replacer<UnrolledSums>(function, "relax.add", "unrolled sums").Run(function);
  });
}

}  // namespace distir::unfuse
