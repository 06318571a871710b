// Lifts row-wise operators to the device of the expert, and brings results back.
#include "optimize/experts/rows.h"

#include <algorithm>

#include "dialect/operators/collective.h"
#include "dialect/operators/token_dispatch.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/symbolic.h"
#include "optimize/experts/types.h"
#include "optimize/program/resharding.h"
#include "rules/call/stated_sizes.h"
#include "rules/factor/axes.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir::optimize {

namespace {

/*! \brief Dimension 0 along the axes of the experts, too. */
ir::Placement AlongRows(const ir::Placement& placement, const std::vector<int>& axes) {
  std::vector<int> dims = dialect::PlacementDims(placement);
  for (int axis : axes) dims[axis] = 0;
  return ir::MakePlacement(dims);
}

/*! \brief A type with another size of dimension 0, along the axes; of tuples, in all fields. */
ir::Type WithRows(const ir::Type& type, const ir::Expr& rows, const std::vector<int>& axes) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    ffi::Array<ir::Type> fields;
    for (const ir::Type& field : tuple.fields()) fields.push_back(WithRows(field, rows, axes));
    return ir::MakeTupleType(fields);
  }
  auto dtensor = ir::DTensorType::Cast(type);
  ffi::Array<ir::Expr> shape = ShapeOf(dtensor);
  shape.Set(0, rows);
  return ir::MakeDTensorType(ir::MakeTensorType(shape, dtensor.tensor_ty()), dtensor.device_mesh(),
                             AlongRows(dtensor.placement(), axes));
}

/*! \brief The placement of a value of other dimensions behind the first, when dimension `from` of
 * `placement` is dimension `to` of the other. */
ir::Placement Moved(const ir::Placement& placement, int from, int to) {
  std::vector<int> dims = dialect::PlacementDims(placement);
  for (int& dim : dims) dim = dim == from ? to : dim;
  return ir::MakePlacement(dims);
}

bool IsTensor(const ir::Expr& arg) { return TypeOf(arg).defined() || ir::TensorType::Is(arg.ty()); }

bool AreFloats(const std::vector<ir::TensorType>& types) {
  for (const ir::TensorType& type : types) {
    if (!IsFloat(type) || !ir::HasKnownShape(type)) return false;
  }
  return true;
}

/*! \brief True if a tensor has the factor as its first dimension, alone; or not at all. */
bool IsByRow(const rules::TensorFactors& factors, int row_factor, bool has_rows) {
  for (size_t d = 0; d < factors.size(); ++d) {
    bool has_factor = false;
    for (int factor : factors[d]) has_factor = has_factor || factor == row_factor;
    if (has_factor != (has_rows && d == 0)) return false;
    if (has_factor && factors[d].size() != 1) return false;
  }
  return !has_rows || !factors.empty();
}

/*! \brief The one dimension behind the first that has elements or shards of its own; -1 where
 * several or none have. */
int WideDim(const ir::NodeArray<ir::Expr>& shape) {
  int wide = -1;
  for (size_t d = 1; d < shape.size(); ++d) {
    if (ir::StaticDim(shape[d]) == 1) continue;
    if (wide >= 0) return -1;
    wide = static_cast<int>(d);
  }
  return wide;
}

/*! \brief Rows (M, ..) as a matrix; nullopt where they are none. */
std::optional<ir::Expr> Flat(const ir::Expr& rows) {
  const ir::DTensorType type = TypeOf(rows);
  const ir::NodeArray<ir::Expr>& shape = ShapeOf(type);
  const int wide = WideDim(shape);
  if (wide < 0) return std::nullopt;
  return Reshaped(rows, {shape[0], shape[wide]}, Moved(type.placement(), wide, 1));
}

/*! \brief There is room for the rows of all devices that counts are of. */
double RoomOf(const ir::Expr& counts) {
  const ir::DTensorType type = TypeOf(counts);
  int64_t devices = ir::StaticDim(ShapeOf(type)[0]);
  const std::vector<int> dims = DimsOf(type);
  for (size_t axis = 0; axis < dims.size(); ++axis)
    if (dims[axis] == 0) devices /= type.device_mesh().shape()[axis];
  return static_cast<double>(devices);
}

}  // namespace

void ExpertRows::Write(EditableBinding* at, const ir::Call& call, const Product& p) {
  const Choice& choice = p.choice;
  const ir::DTensorType y = TypeOf(call);
  Rows rows = RowsOf(at, p);
  const std::string name = at->var.name();
  const ir::Expr product = editable_.InsertBefore(
      at, name,
      dialect::MakeGroupedMatmul(rows.value, p.experts, rows.counts, p.transposed,
                                 y.tensor_ty().dtype(), RoomOf(rows.counts)));
  ffi::Array<ir::Expr> shape = ShapeOf(y);
  shape.Set(0, ShapeOf(TypeOf(product))[0]);
  const ir::Expr combined = BroughtBack(at, name, product, rows, choice);
  rows.value = editable_.InsertBefore(
      at, name, Reshaped(product, shape, AlongRows(y.placement(), choice.axes)));
  Keep(KeyOf(at->var, choice, at), rows);
  SetBack(at, combined, choice);
  for (const ir::Expr& old : {p.x, p.matrices}) Drop(old);
  LiftUsers(at, choice);
}

void ExpertRows::Finish() {
  for (const ir::Expr& value : made_) Drop(value);
}

/*! \brief Computes where the experts are what follows a product, up to the rows that it adds of
 * its experts: these would be gathered else. */
void ExpertRows::LiftUsers(EditableBinding* product, const Choice& choice) {
  EditableBinding* last = product;
  for (EditableBinding* next = product; (next = editable_.OnlyUserOf(next->var)) != nullptr;) {
    auto call = ir::Call::Cast(next->value);
    if (next->block != product->block || next->cast.defined() || !call.defined() ||
        !TypeOf(call).defined() || dialect::DTensorCollective(call.op()).has_value() ||
        ir::IsOp(call.op(), "relax.matmul"))
      break;
    bool has_rows = false;
    for (const ir::Expr& arg : call.args()) has_rows = has_rows || IsLookup(arg, choice);
    if (!has_rows) continue;
    // Rows lifted behind the following products must not be reused by them.
    std::map<Key, Rows> before = lifted_;
    auto found = Lift(next, next->var, choice);
    lifted_ = std::move(before);
    if (!found || !Flat(found->value)) break;
    lifted_[KeyOf(next->var, choice, next)] = *found;
    last = next;
  }
  if (last == product) return;
  const Rows rows = lifted_.at(KeyOf(last->var, choice, last));
  const std::string name = last->var.name();
  const ir::Expr flat = editable_.InsertBefore(last, name, *Flat(rows.value));
  const ir::Expr combined = BroughtBack(last, name, flat, rows, choice);
  const ffi::Array<ir::Expr> args = ir::Call::Cast(last->value).args();
  SetBack(last, combined, choice);
  for (const ir::Expr& arg : args) Drop(arg);
}

void ExpertRows::Drop(const ir::Expr& value) {
  EditableBinding* definition = editable_.DefinitionOf(value);
  if (definition != nullptr && definition->block != nullptr) editable_.DropUnused(definition);
}

void ExpertRows::Keep(const Key& key, const Rows& rows) {
  lifted_[key] = rows;
  made_.push_back(rows.value);
}

/*! \brief The rows (M, D) of a product. */
Rows ExpertRows::RowsOf(EditableBinding* at, const Product& p) {
  const ir::DTensorType x = TypeOf(p.x);
  const ir::Expr width = ShapeOf(x)[3 - p.row_dim];
  const std::string name = ir::Var::Cast(p.x).name();
  const Key key = KeyOf(p.x, p.choice, at);
  auto known = lifted_.find(key);
  if (known == lifted_.end()) {
    if (auto found = Lift(at, p.x, p.choice)) known = lifted_.emplace(key, *found).first;
  }
  if (known != lifted_.end()) {
    Rows rows = known->second;
    const ir::Placement placement = Moved(TypeOf(rows.value).placement(), 3 - p.row_dim, 1);
    rows.value = editable_.InsertBefore(
        at, name, Reshaped(rows.value, {ShapeOf(TypeOf(rows.value))[0], width}, placement));
    return rows;
  }
  const ir::Expr flat = editable_.InsertBefore(
      at, name, Reshaped(p.x, {ShapeOf(x)[0], width}, Moved(x.placement(), 3 - p.row_dim, 1)));
  const Rows rows = Brought(at, name, flat, p.choice);
  ffi::Array<ir::Expr> shape = ShapeOf(x);
  shape.Set(0, ShapeOf(TypeOf(rows.value))[0]);
  Rows wide = rows;
  wide.value = editable_.InsertBefore(
      at, name, Reshaped(rows.value, shape, AlongRows(x.placement(), p.choice.axes)));
  Keep(key, wide);
  lifted_.emplace(KeyOf(ir::Expr(), p.choice, at), rows);
  return rows;
}

Rows ExpertRows::Brought(EditableBinding* at, const std::string& name, const ir::Expr& flat,
                         const Choice& choice) {
  Rows rows;
  ir::Call call;
  if (choice.has_copies) {
    rows.first = FirstExperts(at, choice);
    call = dialect::MakeSelectTokens(flat, choice.ids, rows.first, choice.num_experts, choice.axes);
  } else {
    call = dialect::MakeDispatchTokens(flat, choice.ids, choice.num_experts, choice.axes);
  }
  const ir::Expr tuple = editable_.InsertBefore(at, name, call);
  rows.value = editable_.InsertBefore(at, name, ir::MakeTupleGetItem(tuple, 0));
  rows.counts = editable_.InsertBefore(at, name, ir::MakeTupleGetItem(tuple, 1));
  return rows;
}

/*! \param rows Whose counts are those of `flat`. */
ir::Expr ExpertRows::BroughtBack(EditableBinding* at, const std::string& name, const ir::Expr& flat,
                                 const Rows& rows, const Choice& choice) {
  return editable_.InsertBefore(
      at, name,
      choice.has_copies
          ? dialect::MakePlaceTokens(flat, choice.ids, rows.counts, rows.first, choice.axes)
          : dialect::MakeCombineTokens(flat, choice.ids, rows.counts, choice.axes));
}

/*! \brief Binds what was brought back; what was placed is summed up, together with the sum over
 * other axes that may follow. */
void ExpertRows::SetBack(EditableBinding* at, ir::Expr back, const Choice& choice) {
  const ir::DTensorType type = TypeOf(at->var);
  if (choice.has_copies) {
    EditableBinding* next = editable_.OnlyUserOf(at->var);
    auto sum = next == nullptr ? ir::Call() : ir::Call::Cast(next->value);
    const bool is_summed =
        sum.defined() && dialect::DTensorCollective(sum.op()) == mesh::CollectiveKind::kAllReduce &&
        dialect::ReductionOf(sum) == mesh::Reduction::kSum;
    if (is_summed) {
      std::vector<int> axes = dialect::ReduceAxes(sum);
      axes.insert(axes.end(), choice.axes.begin(), choice.axes.end());
      std::sort(axes.begin(), axes.end());
      editable_.SetValue(next,
                         dialect::MakeCollective(mesh::CollectiveKind::kAllReduce, at->var,
                                                 TypeOf(next->var), axes, mesh::Reduction::kSum));
    } else {
      back = editable_.InsertBefore(
          at, at->var.name(),
          dialect::MakeCollective(mesh::CollectiveKind::kAllReduce, back, TypeOf(back), choice.axes,
                                  mesh::Reduction::kSum));
    }
  }
  editable_.SetValue(at, Reshaped(back, ShapeOf(type), type.placement()));
}

/*!
 * \brief A value as it is where the experts are, if it is computed row by row from products
 * there; nullopt else.
 */
std::optional<Rows> ExpertRows::Lift(EditableBinding* at, const ir::Expr& value,
                                     const Choice& choice) {
  const Key key = KeyOf(value, choice, at);
  if (auto known = lifted_.find(key); known != lifted_.end()) return known->second;
  EditableBinding* binding = editable_.DefinitionOf(value);
  if (binding == nullptr || binding->block != at->block || binding->cast.defined())
    return std::nullopt;
  std::optional<Rows> rows;
  if (auto item = ir::TupleGetItem::Cast(binding->value); item.defined()) {
    if (auto tuple = Lift(at, item.tuple(), choice))
      rows = Rows{ir::MakeTupleGetItem(tuple->value, item.index()), tuple->counts, tuple->first};
  } else if (auto call = ir::Call::Cast(binding->value); call.defined()) {
    auto lookup = ReadLookup(value, editable_, &meshes_);
    rows = lookup && lookup->ids.same_as(choice.ids) ? LiftTake(at, *lookup, binding->var, choice)
                                                     : LiftCall(at, call, choice);
  }
  if (!rows) return std::nullopt;
  rows->value = editable_.InsertBefore(at, binding->var.name(), rows->value);
  Keep(key, *rows);
  return rows;
}

/*! \brief True if a value is what the same choices look up, as a bias of experts is, maybe in
 * another shape. */
bool ExpertRows::IsLookup(const ir::Expr& value, const Choice& choice) const {
  for (const char* op : {"relax.expand_dims", "relax.reshape", "relax.squeeze", "relax.astype"}) {
    if (EditableBinding* binding = DefinitionBy(op, value, editable_))
      return IsLookup(ir::Call::Cast(binding->value).args()[0], choice);
  }
  auto lookup = ReadLookup(value, editable_, &meshes_);
  return lookup && lookup->ids.same_as(choice.ids);
}

/*!
 * \brief Looks up rows in a table of the experts where the experts are: the product of a one by the
 * row of its expert.
 */
std::optional<Rows> ExpertRows::LiftTake(EditableBinding* at, const Lookup& lookup,
                                         const ir::Var& taken, const Choice& choice) {
  auto given = lifted_.find(KeyOf(ir::Expr(), choice, at));
  const ir::DTensorType made = TypeOf(taken);
  if (given == lifted_.end() || !IsFloat(made.tensor_ty()) || !ir::HasKnownShape(made.tensor_ty()))
    return std::nullopt;
  auto table = ShardOf(at, lookup.table, choice, taken.name());
  if (!table || ir::StaticDim(ShapeOf(TypeOf(*table))[0]) != choice.num_experts)
    return std::nullopt;

  const ir::NodeArray<ir::Expr>& shape = ShapeOf(TypeOf(*table));
  const int wide = WideDim(shape);
  if (wide < 0) return std::nullopt;  // matrices, or one element
  const std::vector<int> dims = DimsOf(TypeOf(*table)), of_rows = DimsOf(made);
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] > 0 && dims[axis] != wide) return std::nullopt;
    if ((dims[axis] > 0 || of_rows[axis] > 0) && dims[axis] != of_rows[axis]) return std::nullopt;
  }
  const std::string name = taken.name();
  const ir::Placement flat = Moved(TypeOf(*table).placement(), wide, 2);
  const ir::Expr matrices = editable_.InsertBefore(
      at, name, Reshaped(*table, {shape[0], ir::MakeInt(1), shape[wide]}, flat));
  const ir::Expr rows = editable_.InsertBefore(
      at, name,
      dialect::MakeGroupedMatmul(Ones(at, given->second.value, made), matrices,
                                 given->second.counts, false, made.tensor_ty().dtype(),
                                 RoomOf(given->second.counts)));
  ffi::Array<ir::Expr> result = ShapeOf(made);
  result.Set(0, ShapeOf(TypeOf(rows))[0]);
  return Rows{Reshaped(rows, result, AlongRows(made.placement(), choice.axes)),
              given->second.counts, given->second.first};
}

/*! \brief A table of the experts, sharded as they are. */
std::optional<ir::Expr> ExpertRows::ShardOf(EditableBinding* at, const ir::Expr& table,
                                            const Choice& choice, const std::string& name) {
  const ir::DTensorType type = TypeOf(table);
  if (!type.defined() || !ir::Var::Is(table) || !editable_.IsVisible(table, at) ||
      !ir::StructurallyEqual(type.device_mesh(), TypeOf(choice.ids).device_mesh()) ||
      type.tensor_ty().ndim() < 2)
    return std::nullopt;
  std::vector<int> dims = DimsOf(type);
  std::vector<int> of_rows;
  for (int axis = 0; axis < static_cast<int>(dims.size()); ++axis) {
    if (dims[axis] == 0) of_rows.push_back(axis);
  }
  if (of_rows == choice.axes) return table;
  if (!of_rows.empty()) return std::nullopt;
  for (int axis : choice.axes) {
    if (dims[axis] >= 0) return std::nullopt;
    dims[axis] = 0;
  }
  const ir::DTensorType target =
      ir::MakeDTensorType(type.tensor_ty(), type.device_mesh(), ir::MakePlacement(dims));
  return editable_.InsertBefore(
      at, name, dialect::MakeCollective(mesh::CollectiveKind::kSlice, table, target));
}

/*! \brief Computes a value alike everywhere, then cuts it. \param like On the mesh of. */
ir::Expr ExpertRows::Placed(EditableBinding* at, const std::string& name, const ir::Call& made,
                            const ir::DTensorType& like, const ir::Placement& placement) {
  const ir::TensorType tensor = ir::TensorType::Cast(made.ty());
  const std::vector<int> whole(DimsOf(like).size(), -1);
  const ir::Expr bound = editable_.InsertBefore(
      at, name,
      dialect::MakeRedistribute(
          editable_.InsertBefore(at, name, made),
          ir::MakeDTensorType(tensor, like.device_mesh(), ir::MakePlacement(whole))));
  return editable_.InsertBefore(
      at, name,
      dialect::MakeCollective(mesh::CollectiveKind::kSlice, bound,
                              ir::MakeDTensorType(tensor, like.device_mesh(), placement)));
}

/*! \brief Ones, one for each row. */
ir::Expr ExpertRows::Ones(EditableBinding* at, const ir::Expr& rows, const ir::DTensorType& like) {
  const ffi::Array<ir::Expr> shape = {ShapeOf(TypeOf(rows))[0], ir::MakeInt(1)};
  ir::Call ones = ir::make::kOnes(ir::MakeShape(shape), like.tensor_ty().dtype()).cast<ir::Call>();
  ir::SetType(ones, ir::MakeTensorType(shape, like.tensor_ty()));
  std::vector<int> dims = DimsOf(TypeOf(rows));
  for (int& dim : dims) dim = dim == 0 ? 0 : -1;
  return Placed(at, "ones", ones, TypeOf(rows), ir::MakePlacement(dims));
}

/*! \brief The first expert of each device along the axes of the experts. */
ir::Expr ExpertRows::FirstExperts(EditableBinding* at, const Choice& choice) {
  const ir::DTensorType ids = TypeOf(choice.ids);
  int64_t devices = 1;
  std::vector<int> dims(DimsOf(ids).size(), -1);
  for (int axis : choice.axes) {
    devices *= ids.device_mesh().shape()[axis];
    dims[axis] = 0;
  }
  const int64_t num = choice.num_experts;
  ir::Call range = ir::make::kArange(ir::MakeInt(0), ir::MakeInt(num), ir::MakeInt(num / devices),
                                     DLDataType{kDLInt, 64, 1})
                       .cast<ir::Call>();
  ir::SetType(range, ir::MakeTensorType({ir::MakeInt(devices)}, DLDataType{kDLInt, 64, 1}));
  return Placed(at, "first", range, ids, ir::MakePlacement(dims));
}

std::optional<Rows> ExpertRows::LiftCall(EditableBinding* at, const ir::Call& call,
                                         const Choice& choice) {
  // Values of products and what has been read as one end the search; other operators are pure.
  const rules::Operator* record = rules::FindOperator(call.op());
  if (record == nullptr || record->takes_tuple) return std::nullopt;
  const rules::OpView view = rules::ViewCall(call, call.ty());
  const rules::FactorRule rule = rules::RuleOf(view);
  if (!AreFloats(view.results)) return std::nullopt;
  ffi::Array<ir::Expr> args;
  std::optional<Rows> found;
  int row_factor = -1;
  size_t operand = 0;
  for (const ir::Expr& arg : call.args()) {
    if (ir::TupleType::Is(arg.ty())) return std::nullopt;
    if (!IsTensor(arg)) {
      args.push_back(arg);
      continue;
    }
    const rules::TensorFactors& factors = rule.operands[operand++];
    std::optional<Rows> rows = Lift(at, arg, choice);
    if (rows) {
      if (factors.empty() || factors[0].size() != 1) return std::nullopt;
      if (row_factor >= 0 && factors[0][0] != row_factor) return std::nullopt;
      row_factor = factors[0][0];
      found = rows;
    }
    args.push_back(rows ? rows->value : arg);
  }
  if (!found || !rule.factors[row_factor].Is<rules::ParallelFactor>()) return std::nullopt;
  operand = 0;
  for (size_t i = 0; i < call.args().size(); ++i) {
    if (!IsTensor(call.args()[i])) continue;
    const bool is_lifted = !args[i].same_as(call.args()[i]);
    if (!IsByRow(rule.operands[operand++], row_factor, is_lifted)) return std::nullopt;
  }
  for (const rules::TensorFactors& result : rule.results) {
    if (!IsByRow(result, row_factor, true)) return std::nullopt;
  }
  const ir::Type type = WithRows(call.ty(), ShapeOf(TypeOf(found->value))[0], choice.axes);
  return Rows{rules::ResizedCall(call, type, args), found->counts, found->first};
}

}  // namespace distir::optimize
