// Rewrites values that all experts compute for all tokens to rows for the pairs of a token and an
// expert with a nonzero weight.
#include "optimize/pairs/pair_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dialect/operators/collective.h"
#include "dialect/operators/pair_selection.h"
#include "dialect/operators/segment_exchange.h"
#include "dialect/operators/token_dispatch.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/symbolic.h"
#include "optimize/experts/types.h"
#include "rules/call/stated_sizes.h"
#include "rules/operator.h"

namespace distir::optimize {

namespace {

bool IsOne(const ir::Expr& size) { return ir::StaticDim(size) == 1; }

/*! \brief The dimensions of a value that are neither of tokens nor of experts, and not 1. */
std::vector<int> WideDims(const ir::NodeArray<ir::Expr>& shape, const PairDims& dims) {
  std::vector<int> wide;
  for (int d = 0; d < static_cast<int>(dims.size()); ++d)
    if (dims[d].part == Part::kOther && !IsOne(shape[d])) wide.push_back(d);
  return wide;
}

/*! \brief True if tensors have the same dimensions of pairs, all of one being those of the other.
 */
bool ArePairsAlone(const rules::FactorRule& rule, const PairDims& factors) {
  for (size_t f = 0; f < factors.size(); ++f)
    if (factors[f].part != Part::kOther && !rule.factors[f].Is<rules::ParallelFactor>())
      return false;
  return true;
}

}  // namespace

ir::Expr AsCube(const ir::Expr& given, const PairDims& dims, int64_t num_experts,
                const std::function<ir::Expr(const ir::Expr&)>& bind) {
  ir::Expr value = given;
  // Pairs apart: (experts, tokens).
  PairDims parts;
  ffi::Array<ir::Expr> shape;
  std::vector<int> placed = DimsOf(TypeOf(value)), at(dims.size());
  const ffi::Array<ir::Expr> before = ShapeOf(TypeOf(value));
  for (size_t d = 0; d < dims.size(); ++d) {
    at[d] = static_cast<int>(parts.size());
    if (dims[d].part == Part::kPair) {
      parts.push_back({Part::kExpert, 0});
      shape.push_back(ir::MakeInt(num_experts));
      parts.push_back({Part::kToken, dims[d].stride});
      shape.push_back(ir::FloorDivide(before[d], num_experts));
    } else {
      parts.push_back(dims[d]);
      shape.push_back(before[d]);
    }
  }
  for (int& dim : placed) dim = dim < 0 ? -1 : at[dim];
  if (parts.size() != dims.size()) value = bind(Reshaped(value, shape, placed));

  // Tokens, then experts, then the rest, of which those that are 1 come last.
  const std::vector<int> wide = WideDims(shape, parts);
  std::vector<int> tokens, experts, order;
  for (int d = 0; d < static_cast<int>(parts.size()); ++d) {
    if (parts[d].part == Part::kToken) tokens.push_back(d);
    if (parts[d].part == Part::kExpert) experts.push_back(d);
  }
  std::stable_sort(tokens.begin(), tokens.end(),
                   [&](int a, int b) { return parts[a].stride > parts[b].stride; });
  if (wide.size() > 1 || experts.size() > 1) return ir::Expr();
  for (int dim : placed) {
    if (dim >= 0 && !(parts[dim].part == Part::kExpert || (!tokens.empty() && dim == tokens[0]) ||
                      (!wide.empty() && dim == wide[0])))
      return ir::Expr();
  }
  for (const std::vector<int>& each : {tokens, experts, wide})
    order.insert(order.end(), each.begin(), each.end());
  for (int d = 0; d < static_cast<int>(parts.size()); ++d)
    if (std::find(order.begin(), order.end(), d) == order.end()) order.push_back(d);
  const auto place_of = [&](int dim) {
    if (dim < 0) return -1;
    return parts[dim].part == Part::kToken ? 0 : parts[dim].part == Part::kExpert ? 1 : 2;
  };
  std::vector<ir::Expr> of_tokens;
  for (int d : tokens) of_tokens.push_back(shape[d]);
  const ffi::Array<ir::Expr> cube = {tokens.empty() ? ir::MakeInt(1) : ir::Product(of_tokens),
                                     experts.empty() ? ir::MakeInt(1) : shape[experts[0]],
                                     wide.empty() ? ir::MakeInt(1) : shape[wide[0]]};
  std::vector<int> placed_cube;
  for (int dim : placed) placed_cube.push_back(place_of(dim));
  if (!std::is_sorted(order.begin(), order.end())) {
    ffi::Array<int64_t> axes;
    ffi::Array<ir::Expr> turned;
    for (int d : order) {
      axes.push_back(d);
      turned.push_back(shape[d]);
    }
    for (int& dim : placed) {
      if (dim >= 0)
        dim = static_cast<int>(std::find(order.begin(), order.end(), dim) - order.begin());
    }
    const ir::DTensorType type = TypeOf(value);
    ir::Call call = ir::make::kPermuteDims(value, axes).cast<ir::Call>();
    ir::SetType(call, ir::MakeDTensorType(ir::MakeTensorType(turned, type.tensor_ty()),
                                          type.device_mesh(), ir::MakePlacement(placed)));
    value = bind(call);
  }
  return bind(Reshaped(value, cube, placed_cube));
}

ir::Expr PairRows::Bind(const std::string& like, const ir::Expr& value) {
  made_.push_back(editable_.InsertBefore(at_, like, value));
  return made_.back();
}

/*! \brief A type with one dimension of all pairs, and 1 in place of others of tokens or experts. */
std::optional<ir::DTensorType> PairRows::LiftedType(const ir::Type& of, const PairDims& dims) {
  const ir::DTensorType type = ir::DTensorType::Cast(of), weights = TypeOf(weights_);
  if (!type.defined() || !ir::HasKnownShape(type.tensor_ty()) ||
      type.tensor_ty().ndim() != static_cast<int>(dims.size()))
    return std::nullopt;
  const int row = RowDim(dims);
  ffi::Array<ir::Expr> shape = ShapeOf(type);
  for (int d = 0; d < static_cast<int>(dims.size()); ++d) {
    if (d == row) {
      shape.Set(d, ir::Multiply(ShapeOf(weights)[0], sum_.num_experts));
    } else if (dims[d].part != Part::kOther) {
      shape.Set(d, ir::MakeInt(1));
    }
  }
  std::vector<int> placed = DimsOf(type);
  const std::vector<int> of_weights = DimsOf(weights);
  for (size_t axis = 0; axis < placed.size(); ++axis) {
    const bool is_other = placed[axis] >= 0 && dims[placed[axis]].part == Part::kOther;
    if (is_other && of_weights[axis] >= 0) return std::nullopt;
    if (!is_other) placed[axis] = of_weights[axis] >= 0 ? row : -1;
  }
  return ir::MakeDTensorType(ir::MakeTensorType(shape, type.tensor_ty()), type.device_mesh(),
                             ir::MakePlacement(placed));
}

ir::Expr PairRows::Flat(const ir::Expr& rows, const PairDims& dims) {
  const ir::DTensorType type = TypeOf(rows);
  const ir::NodeArray<ir::Expr>& shape = ShapeOf(type);
  const std::vector<int> wide = WideDims(shape, dims);
  if (wide.size() > 1) return ir::Expr();
  const int row = RowDim(dims);
  if (!wide.empty() && wide[0] < row) return ir::Expr();
  std::vector<int> placed = DimsOf(type);
  for (int& dim : placed) dim = dim < 0 ? -1 : dim == row ? 0 : 1;
  return Bind(ir::Var::Cast(rows).name(),
              Reshaped(rows, {shape[row], wide.empty() ? ir::MakeInt(1) : shape[wide[0]]}, placed));
}

ir::Expr PairRows::Lift(const ir::Expr& value, const PairDims& dims) {
  if (!HasTokens(dims) && !HasExperts(dims)) return value;
  if (auto known = lifted_.find(value.get()); known != lifted_.end()) return known->second;
  ir::Expr rows = LiftCall(value, dims);
  if (!rows.defined()) rows = Selected(value, dims);
  if (rows.defined()) lifted_[value.get()] = rows;
  return rows;
}

/*! \brief Computes an operator from rows of its operands; null if its result is selected. */
ir::Expr PairRows::LiftCall(const ir::Expr& value, const PairDims& dims) {
  EditableBinding* binding = editable_.DefinitionOf(value);
  if (binding == nullptr || binding->cast.defined() || binding->block == nullptr ||
      !HasTokens(dims))
    return ir::Expr();
  if (auto item = ir::TupleGetItem::Cast(binding->value); item.defined())
    return LiftItem(item, dims);
  auto call = ir::Call::Cast(binding->value);
  if (!call.defined()) return ir::Expr();
  if (dialect::IsSegmentExchange(call.op())) return LiftRepeated(call, dims);
  if (dialect::DTensorCollective(call.op()).has_value())
    return HasExperts(dims) ? LiftSum(call, dims) : ir::Expr();
  auto read = ReadRule(call);
  if (!read || read->rule.results.size() != 1) return ir::Expr();
  auto factors = PartsOfFactors(read->rule, read->rule.results[0], dims, sum_.num_experts);
  if (!factors) return ir::Expr();
  if (!HasExperts(dims)) {
    // Only what changes the form of tokens, down to where they are gathered.
    static const char* const kForms[] = {"relax.astype",      "relax.broadcast_to",
                                         "relax.expand_dims", "relax.permute_dims",
                                         "relax.reshape",     "relax.squeeze"};
    if (std::none_of(std::begin(kForms), std::end(kForms),
                     [&](const char* name) { return ir::IsOp(call.op(), name); }))
      return ir::Expr();
  }
  if (ir::Expr product = LiftProduct(*read, *factors); product.defined()) return product;
  return LiftOperator(*read, *factors, call.ty());
}

ir::Expr PairRows::LiftItem(const ir::TupleGetItem& item, const PairDims& dims) {
  EditableBinding* binding = editable_.DefinitionOf(item.tuple());
  auto call = binding == nullptr ? ir::Call() : ir::Call::Cast(binding->value);
  auto read = call.defined() ? ReadRule(call) : std::nullopt;
  if (!read || dialect::DTensorCollective(call.op()).has_value() || !HasExperts(dims) ||
      static_cast<size_t>(item.index()) >= read->rule.results.size())
    return ir::Expr();
  ir::Expr& tuple = lifted_[item.tuple().get()];
  if (!tuple.defined()) {
    auto factors =
        PartsOfFactors(read->rule, read->rule.results[item.index()], dims, sum_.num_experts);
    if (factors) tuple = LiftOperator(*read, *factors, call.ty());
  }
  if (!tuple.defined()) return ir::Expr();
  return Bind(binding->var.name(), ir::MakeTupleGetItem(tuple, item.index()));
}

/*!
 * \brief Tokens that are repeated for each expert, as R.tile is written where experts are sharded:
 * rows of the tokens, as if these were gathered.
 */
ir::Expr PairRows::LiftRepeated(const ir::Call& call, const PairDims& dims) {
  const dialect::SegmentMove move = dialect::MoveOf(call);
  const int dim = move.moved.dim;
  const int64_t size = move.moved.source_size;
  if (dims[dim].part != Part::kPair ||
      static_cast<int64_t>(move.segments.size()) != sum_.num_experts ||
      move.moved.target_size != size * sum_.num_experts)
    return ir::Expr();
  for (size_t i = 0; i < move.segments.size(); ++i) {
    const mesh::Segment& each = move.segments[i];
    const int64_t first = static_cast<int64_t>(i) * size;
    if (each.source != 0 || each.target != first || each.step != 1 || each.count != size)
      return ir::Expr();
  }
  PairDims of_tokens = dims;
  of_tokens[dim].part = Part::kToken;
  ir::Expr tokens = call.args()[0];
  ir::DTensorType type = TypeOf(tokens);
  EditableBinding* definition = editable_.DefinitionOf(tokens);
  auto cut = definition == nullptr ? ir::Call() : ir::Call::Cast(definition->value);
  std::vector<int> placed = DimsOf(type);
  for (int axis : sum_.expert_axes) placed[axis] = placed[axis] == dim ? -1 : placed[axis];
  const ir::DTensorType whole =
      ir::MakeDTensorType(type.tensor_ty(), type.device_mesh(), ir::MakePlacement(placed));
  const bool is_cut = cut.defined() &&
                      dialect::DTensorCollective(cut.op()) == mesh::CollectiveKind::kSlice &&
                      ir::StructurallyEqual(cut.args()[0].ty(), whole);
  if (is_cut) {
    tokens = cut.args()[0];
  } else if (placed != DimsOf(type)) {
    tokens = Bind(ir::Var::Cast(tokens).name(),
                  dialect::MakeCollective(mesh::CollectiveKind::kAllGather, tokens, whole));
  }
  return Lift(tokens, of_tokens);
}

/*! \brief A sum over other axes than those of the experts. */
ir::Expr PairRows::LiftSum(const ir::Call& call, const PairDims& dims) {
  if (dialect::DTensorCollective(call.op()) != mesh::CollectiveKind::kAllReduce ||
      !ir::DTensorType::Is(call.ty()) || dialect::ReductionOf(call) != mesh::Reduction::kSum)
    return ir::Expr();
  const std::vector<int> axes = dialect::ReduceAxes(call);
  for (int axis : axes)
    if (DimsOf(TypeOf(weights_))[axis] >= 0) return ir::Expr();
  const ir::Expr rows = Lift(call.args()[0], dims);
  if (!rows.defined()) return ir::Expr();
  return Bind(ir::Var::Cast(rows).name(),
              dialect::MakeCollective(mesh::CollectiveKind::kAllReduce, rows, TypeOf(rows), axes,
                                      mesh::Reduction::kSum));
}

/*! \brief A product with the matrices of experts; null for other calls. */
ir::Expr PairRows::LiftProduct(const RuledCall& read, const PairDims& factors) {
  const bool multiplies =
      ir::IsOp(read.call.op(), "relax.matmul") || ir::IsOp(read.call.op(), "relax.einsum");
  if (!multiplies || read.operands.size() != 2 || !ArePairsAlone(read.rule, factors))
    return ir::Expr();
  int contracted = -1;
  for (int f = 0; f < static_cast<int>(factors.size()); ++f) {
    if (read.rule.factors[f].reduction() == mesh::Reduction::kNone) continue;
    if (contracted >= 0 || read.rule.factors[f].reduction() != mesh::Reduction::kSum)
      return ir::Expr();
    contracted = f;
  }
  for (int table : {1, 0}) {
    const rules::TensorFactors& of_table = read.rule.operands[table];
    auto dims = PartsOfDims(read.rule, of_table, factors);
    auto of_rows = PartsOfDims(read.rule, read.rule.operands[1 - table], factors);
    auto of_result = PartsOfDims(read.rule, read.rule.results[0], factors);
    if (!dims || !of_rows || !of_result || HasTokens(*dims) || dims->size() != 3 ||
        (*dims)[0].part != Part::kExpert || !HasTokens(*of_rows))
      continue;
    has_products_ = true;
    const auto is_contracted = [&](int d) {
      return of_table[d].size() == 1 && of_table[d][0] == contracted;
    };
    const bool transposed = is_contracted(2);
    const ir::DTensorType type = TypeOf(read.operands[table]), made = TypeOf(read.call);
    if (contracted < 0 || is_contracted(1) == transposed || !IsFloat(type.tensor_ty()) ||
        !IsFloat(made.tensor_ty()) || !editable_.IsVisible(read.operands[table], at_))
      return ir::Expr();
    std::vector<int> axes;
    const std::vector<int> placed = DimsOf(type);
    for (int axis = 0; axis < static_cast<int>(placed.size()); ++axis)
      if (placed[axis] == 0) axes.push_back(axis);
    auto lifted = LiftedType(made, *of_result);
    if (axes != sum_.expert_axes || !lifted) return ir::Expr();
    const ir::Expr rows = Lift(read.operands[1 - table], *of_rows);
    const ir::Expr flat = rows.defined() ? Flat(rows, *of_rows) : ir::Expr();
    if (!flat.defined() || !IsFloat(TypeOf(flat).tensor_ty()) || !counts_.defined())
      return ir::Expr();
    const std::string name = ir::Var::Cast(flat).name();
    const double room = static_cast<double>(sum_.num_experts) / static_cast<double>(sum_.choices);
    const ir::Expr product =
        Bind(name, dialect::MakeGroupedMatmul(flat, read.operands[table], counts_, transposed,
                                              made.tensor_ty().dtype(), room));
    ++num_products_;
    return Bind(name, Reshaped(product, ShapeOf(*lifted), DimsOf(*lifted)));
  }
  return ir::Expr();
}

/*! \brief An operator on rows: itself, for other sizes. */
ir::Expr PairRows::LiftOperator(const RuledCall& read, const PairDims& factors,
                                const ir::Type& type) {
  const rules::Operator* record = rules::FindOperator(read.call.op());
  if (record == nullptr || record->takes_tuple || !ArePairsAlone(read.rule, factors))
    return ir::Expr();
  std::vector<PairDims> of_results;
  for (const rules::TensorFactors& result : read.rule.results) {
    auto dims = PartsOfDims(read.rule, result, factors);
    if (!dims || !HasTokens(*dims)) return ir::Expr();
    of_results.push_back(*dims);
  }
  ir::Type made;
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    ffi::Array<ir::Type> fields;
    for (size_t i = 0; i < of_results.size(); ++i) {
      auto field = LiftedType(tuple.fields()[i], of_results[i]);
      if (!field) return ir::Expr();
      fields.push_back(*field);
    }
    made = ir::MakeTupleType(fields);
  } else if (auto lifted = LiftedType(type, of_results[0])) {
    made = *lifted;
  } else {
    return ir::Expr();
  }
  // Rows of one operand meet those of another only where elements meet: `take(table, ids)`, both of
  // which differ by expert, would look up the ids of all pairs for each pair.
  std::vector<PairDims> of_operands;
  int num_varying = 0;
  for (const rules::TensorFactors& operand : read.rule.operands) {
    auto dims = PartsOfDims(read.rule, operand, factors);
    if (!dims) return ir::Expr();
    num_varying += HasTokens(*dims) || HasExperts(*dims);
    of_operands.push_back(std::move(*dims));
  }
  if (num_varying != 1 && !record->is_elementwise) return ir::Expr();
  ffi::Array<ir::Expr> args;
  size_t operand = 0;
  bool any = false;
  for (const ir::Expr& arg : read.call.args()) {
    if (!ir::DTensorType::Is(arg.ty())) {
      args.push_back(arg);
      continue;
    }
    const PairDims& dims = of_operands[operand++];
    ir::Expr rows = Lift(arg, dims);
    if (rows.defined() && !rows.same_as(arg)) {
      any = true;
      rows = Aligned(rows, dims, of_results[0]);
    }
    if (!rows.defined() || (rows.same_as(arg) && !editable_.IsVisible(arg, at_))) return ir::Expr();
    args.push_back(rows);
  }
  if (!any) return ir::Expr();
  const std::string name = ir::Var::Cast(args[0]).defined() ? ir::Var::Cast(args[0]).name() : "row";
  return Bind(name, rules::ResizedCall(read.call, made, args));
}

/*! \brief Rows of what has no tokens, in the dimension in which those of the result are; dimensions
 * of a result are matched from behind. */
ir::Expr PairRows::Aligned(const ir::Expr& rows, const PairDims& dims, const PairDims& of_result) {
  if (HasTokens(dims)) return rows;
  const int before = static_cast<int>(of_result.size()) - static_cast<int>(dims.size());
  if (before < 0) return ir::Expr();
  const int row = RowDim(of_result);
  const ir::NodeArray<ir::Expr>& shape = ShapeOf(TypeOf(rows));
  ffi::Array<ir::Expr> aligned;
  for (int d = 0; d < static_cast<int>(of_result.size()); ++d) {
    const bool is_other = d >= before && dims[d - before].part == Part::kOther;
    if (d == row && is_other && !IsOne(shape[d - before])) return ir::Expr();
    aligned.push_back(d == row   ? shape[RowDim(dims)]
                      : is_other ? shape[d - before]
                                 : ir::MakeInt(1));
  }
  std::vector<int> placed = DimsOf(TypeOf(rows));
  for (int& dim : placed) dim = dim < 0 ? -1 : dim == RowDim(dims) ? row : dim + before;
  return Bind(ir::Var::Cast(rows).name(), Reshaped(rows, aligned, placed));
}

/*! \brief The rows of a value that is there for all tokens, or all experts, or both. */
ir::Expr PairRows::Selected(const ir::Expr& value, const PairDims& dims) {
  auto lifted = LiftedType(value.ty(), dims);
  if (!ir::Var::Is(value) || !lifted || !editable_.IsVisible(value, at_)) return ir::Expr();
  const std::string name = ir::Var::Cast(value).name();
  const ir::Expr cube =
      AsCube(value, dims, sum_.num_experts, [&](const ir::Expr& step) { return Bind(name, step); });
  if (!cube.defined()) return ir::Expr();
  // Values sharded differently from the weights would have to move.
  const ir::DTensorType type = TypeOf(cube), weights = TypeOf(weights_);
  const std::vector<int> placed = DimsOf(type), of_weights = DimsOf(weights);
  for (int d : {0, 1}) {
    const bool is_alike = d == 0 ? !HasTokens(dims) : !HasExperts(dims);
    if (!is_alike && !ir::SameDim(ShapeOf(type)[d], ShapeOf(weights)[d])) return ir::Expr();
    for (size_t axis = 0; axis < placed.size(); ++axis)
      if ((placed[axis] == d) != (!is_alike && of_weights[axis] == d)) return ir::Expr();
  }
  const ir::Expr tuple = Bind(name, dialect::MakeSelectPairs(cube, weights_));
  const ir::Expr rows = Bind(name, ir::MakeTupleGetItem(tuple, 0));
  if (!counts_.defined()) counts_ = Bind(name, ir::MakeTupleGetItem(tuple, 1));
  if (!HasExperts(dims)) tokens_.push_back({value, dims, editable_.DefinitionOf(cube)});
  return Bind(name, Reshaped(rows, ShapeOf(*lifted), DimsOf(*lifted)));
}

}  // namespace distir::optimize
