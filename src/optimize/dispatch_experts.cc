// dispatch_experts: tokens go to the devices that have their experts, instead of the experts to all
// tokens.
//
//     all = R.dist.all_gather(experts, ..)          t = R.dist.dispatch_tokens(x, ids, ..)
//     w = R.take(all, ids, axis=0)             ->   h = R.dist.grouped_matmul(t[0], experts, t[1])
//     y = R.matmul(x, w)                            y = R.dist.combine_tokens(h, ids, t[1], ..)
//
// Rows of ids stand for a token and one of its choices. What lies between two such products of the
// same choices, and is computed row by row, is computed where the rows are: in y = silu(x w) v only
// x is dispatched and only y combined. Which operators go row by row is read off their factor
// rules. What is behind the rows that a device has received is never seen again.
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "dialect/operators/collective.h"
#include "dialect/operators/token_dispatch.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/symbolic.h"
#include "optimize/optimization.h"
#include "rules/call/stated_sizes.h"
#include "rules/factor/axes.h"
#include "rules/operator.h"
#include "rules/registry.h"

namespace distir {
namespace optimize {

namespace {

/*! \brief The matrices of the experts that rows have chosen. */
struct Lookup {
  ir::Expr experts;  // (E, D, F), sharded along E; of matrices (F, D), transposed
  ir::Expr ids;
  bool transposed = false;
  std::vector<int> axes;  // of the mesh, along which the experts lie
  double gathered_bytes = 0;
};

/*! \brief One row per choice by the matrix of its expert. */
struct Product {
  Lookup lookup;
  ir::Expr x;
  ir::Expr matrices;  // the operand that the lookup is
  int row_dim;        // of x (N, 1, D), or (N, D, 1) behind the matrices: the 1
};

ir::DTensorType TypeOf(const ir::Expr& expr) { return ir::DTensorType::Cast(expr.ty()); }
std::vector<int> DimsOf(const ir::DTensorType& type) {
  return dialect::PlacementDims(type.placement());
}
const ffi::Array<ir::Expr>& ShapeOf(const ir::DTensorType& type) {
  return ir::ShapeOf(type.tensor_ty());
}

/*! \brief A type with another size of dimension 0; of tuples, in all fields. */
ir::Type WithRows(const ir::Type& type, const ir::Expr& rows) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    ffi::Array<ir::Type> fields;
    for (const ir::Type& field : tuple.fields()) fields.push_back(WithRows(field, rows));
    return ir::MakeTupleType(fields);
  }
  auto dtensor = ir::DTensorType::Cast(type);
  ffi::Array<ir::Expr> shape = ShapeOf(dtensor);
  shape.Set(0, rows);
  return ir::MakeDTensorType(ir::MakeTensorType(shape, dtensor.tensor_ty()), dtensor.device_mesh(),
                             dtensor.placement());
}

/*! \brief The placement of a value of other dimensions behind the first, when dimension `from` of
 * `placement` is dimension `to` of the other. */
ir::Placement Moved(const ir::Placement& placement, int from, int to) {
  std::vector<int> dims = dialect::PlacementDims(placement);
  for (int& dim : dims) dim = dim == from ? to : dim;
  return ir::MakePlacement(dims);
}

/*! \brief A reshape of which dimension 0 is not touched. */
ir::Call Reshape(const ir::Expr& value, const ffi::Array<ir::Expr>& shape,
                 const ir::Placement& placement) {
  const ir::DTensorType type = TypeOf(value);
  ir::Call call = ir::make::kReshape(value, ir::MakeShape(shape)).cast<ir::Call>();
  ir::SetType(call, ir::MakeDTensorType(ir::MakeTensorType(shape, type.tensor_ty()),
                                        type.device_mesh(), placement));
  return call;
}

class Dispatch {
 public:
  Dispatch(EditableFunction* editable, Program* program, Tally* tally)
      : editable_(*editable),
        meshes_(*program->meshes),
        is_offered_(IsOffered(program->options, dialect::kDispatchTokens)),
        tally_(*tally) {}

  void Run() {
    for (EditableBinding* binding : editable_.Bindings()) {
      if (binding->dropped || binding->block == nullptr || binding->cast.defined()) continue;
      auto call = ir::Call::Cast(binding->value);
      if (!call.defined() || !ir::IsOp(call.op(), "relax.matmul") || !TypeOf(call).defined())
        continue;
      auto product = ReadProduct(call);
      if (!product) continue;
      if (const char* why = Refusal(binding, call, *product)) {
        tally_.Skip(why);
        continue;
      }
      Write(binding, call, *product);
      ++tally_.matched;
    }
    for (const ir::Expr& value : made_) Drop(value);
  }

 private:
  // ---- reading

  EditableBinding* Definition(const ir::Expr& value, const char* op) const {
    EditableBinding* binding = editable_.DefinitionOf(value);
    auto call = binding == nullptr ? ir::Call() : ir::Call::Cast(binding->value);
    return call.defined() && ir::IsOp(call.op(), op) ? binding : nullptr;
  }

  std::optional<Product> ReadProduct(const ir::Call& call) {
    for (int matrix : {1, 0}) {
      auto lookup = ReadLookup(call.args()[matrix]);
      if (!lookup) continue;
      // matrices (F, D) by a column are a row by matrices (D, F)
      if (matrix == 0) lookup->transposed = !lookup->transposed;
      return Product{*lookup, call.args()[1 - matrix], call.args()[matrix], matrix == 1 ? 1 : 2};
    }
    return std::nullopt;
  }

  /*! \brief R.take of gathered experts, maybe transposed. */
  std::optional<Lookup> ReadLookup(ir::Expr value) {
    Lookup lookup;
    if (EditableBinding* permutation = Definition(value, "relax.permute_dims")) {
      auto call = ir::Call::Cast(permutation->value);
      auto axes = rules::ReadAxes(ir::attrs::kPermuteDimsAxes(call.attrs()), 3);
      auto type = TypeOf(value);
      if (!type.defined() || type.tensor_ty().ndim() != 3 || !axes || (*axes)[0] != 0 ||
          (*axes)[1] != 2)
        return std::nullopt;
      lookup.transposed = true;
      value = call.args()[0];
    }
    EditableBinding* take = Definition(value, "relax.take");
    if (take == nullptr) return std::nullopt;
    auto call = ir::Call::Cast(take->value);
    const std::string mode = ir::attrs::kTakeMode.Text(call.attrs());
    auto axes = rules::ReadAxes(ir::attrs::kTakeAxis(call.attrs()), 3);
    auto ids = TypeOf(call.args()[1]);
    if (!ids.defined() || ids.tensor_ty().ndim() != 1 || !axes || (*axes)[0] != 0 ||
        mode == "wrap" || mode == "nan" || TypeOf(value).tensor_ty().ndim() != 3)
      return std::nullopt;
    EditableBinding* gather = editable_.DefinitionOf(WithPadding(call.args()[0], mode));
    auto step = gather == nullptr ? std::nullopt : ReadResharding(gather->value, &meshes_);
    if (!step || step->kind != mesh::CollectiveKind::kAllGather || step->source.dims[0].empty() ||
        !step->target.dims[0].empty())
      return std::nullopt;
    auto collective = ir::Call::Cast(gather->value);
    lookup.experts = collective.args()[0];
    lookup.ids = call.args()[1];
    const std::vector<int> dims = DimsOf(TypeOf(lookup.experts));
    for (int axis = 0; axis < static_cast<int>(dims.size()); ++axis) {
      if (dims[axis] == 0) lookup.axes.push_back(axis);
    }
    const double bytes = LocalBytes(TypeOf(lookup.experts).tensor_ty(), step->source);
    lookup.gathered_bytes = bytes * static_cast<double>(mesh::NumShards(step->source.dims[0]) - 1);
    return lookup;
  }

  /*! \brief The padded experts of which a table is the first ones; else the table itself. Where ids
   * outside of the table mean its last row, that row is not the last of the padded ones. */
  ir::Expr WithPadding(const ir::Expr& table, const std::string& mode) const {
    EditableBinding* cut = Definition(table, "relax.strided_slice");
    if (cut == nullptr || mode == "clip") return table;
    auto call = ir::Call::Cast(cut->value);
    const auto is_one = [&call](size_t arg, int64_t value) {
      auto stated = rules::IntegersOf(call.args()[arg]);
      return stated && stated->size() == 1 && (*stated)[0] == value;
    };
    const bool has_steps = call.args().size() > 4 && !is_one(4, 1);
    return is_one(1, 0) && is_one(2, 0) && !has_steps ? call.args()[0] : table;
  }

  /*! \brief Why a product stays as it is; null where it does not. */
  const char* Refusal(const EditableBinding* binding, const ir::Call& call, const Product& p) {
    const ir::DTensorType experts = TypeOf(p.lookup.experts), ids = TypeOf(p.lookup.ids);
    const ir::DTensorType x = TypeOf(p.x), y = TypeOf(call);
    const bool shapes_known = x.defined() && x.tensor_ty().ndim() == 3 &&
                              ir::HasKnownShape(x.tensor_ty()) && ir::HasKnownShape(y.tensor_ty());
    if (!ir::Var::Is(p.x) || !ir::Var::Is(p.lookup.ids)) return "tokens or choices are constants";
    if (!shapes_known || ir::StaticDim(ShapeOf(experts)[0]) < 0) return "sizes are not known";
    if (!ir::SameDim(ShapeOf(x)[0], ShapeOf(ids)[0])) return "tokens are shared by choices";
    if (ir::StaticDim(ShapeOf(x)[p.row_dim]) != 1) return "several rows for one choice";
    for (const ir::DTensorType& type : {experts, x, y}) {
      if (!ir::StructurallyEqual(type.device_mesh(), ids.device_mesh()))
        return "experts and tokens name different meshes";
    }
    const std::vector<int> of_experts = DimsOf(experts), of_ids = DimsOf(ids);
    const std::vector<int> of_x = DimsOf(x), of_y = DimsOf(y);
    const int contracted = p.lookup.transposed ? 2 : 1, columns = 3 - contracted;
    const int width = 3 - p.row_dim;
    for (size_t axis = 0; axis < of_ids.size(); ++axis) {
      const int of_expert = of_experts[axis];
      if (of_expert == 0 && of_ids[axis] != 0) return "tokens are not sharded where experts are";
      if ((of_x[axis] == 0) != (of_ids[axis] == 0) || (of_y[axis] == 0) != (of_ids[axis] == 0))
        return "tokens are not sharded where their choices are";
      if ((of_expert == contracted) != (of_x[axis] == width))
        return "experts and tokens are sharded differently along the contracted dimension";
      if ((of_expert == columns) != (of_y[axis] == width))
        return "columns of the experts are gathered, too";
    }
    for (const ir::DTensorType& type : {experts, x, y}) {
      if (!IsFloat(type.tensor_ty())) return "not floats";
    }
    const DLDataType id = ids.tensor_ty().dtype();
    if (id.code != kDLInt || (id.bits != 32 && id.bits != 64)) return "ids are not int32 or int64";
    if (SentBytes(x, y) > p.lookup.gathered_bytes) return "gathering the experts sends less";
    for (const ir::Expr& needed : {p.lookup.experts, p.lookup.ids}) {
      if (!editable_.IsVisible(needed, binding)) return "experts or choices are not visible";
    }
    if (!is_offered_) return "the runtime does not dispatch tokens";
    return nullptr;
  }

  static bool IsFloat(const ir::TensorType& type) {
    return type.has_dtype() && (type.dtype().code == kDLFloat || type.dtype().code == kDLBfloat) &&
           type.dtype().lanes == 1;
  }

  /*! \brief Rows there and back. */
  double SentBytes(const ir::DTensorType& x, const ir::DTensorType& y) {
    return LocalBytes(x.tensor_ty(), meshes_.ShardingOf(x)) +
           LocalBytes(y.tensor_ty(), meshes_.ShardingOf(y));
  }

  // ---- writing

  /*! \brief Rows where their experts are, and how many of them. */
  struct Rows {
    ir::Expr value, counts;
  };

  using Key =
      std::tuple<const ffi::Object*, const ffi::Object*, int64_t, std::vector<int>, const Block*>;

  static Key KeyOf(const ir::Expr& value, const Lookup& lookup, int64_t experts,
                   const EditableBinding* at) {
    return {value.get(), lookup.ids.get(), experts, lookup.axes, at->block};
  }

  void Write(EditableBinding* at, const ir::Call& call, const Product& p) {
    const Lookup& lookup = p.lookup;
    const ir::DTensorType x = TypeOf(p.x), y = TypeOf(call);
    const int64_t experts = ir::StaticDim(ShapeOf(TypeOf(lookup.experts))[0]);
    Rows rows = RowsOf(at, p, experts);
    const std::string name = at->var.name();
    const ir::Expr product = editable_.InsertBefore(
        at, name,
        dialect::MakeGroupedMatmul(rows.value, lookup.experts, rows.counts, lookup.transposed,
                                   y.tensor_ty().dtype()));
    const ir::DTensorType made = TypeOf(product);
    ffi::Array<ir::Expr> shape = ShapeOf(y);
    shape.Set(0, ShapeOf(made)[0]);
    Keep(KeyOf(at->var, lookup, experts, at),
         {editable_.InsertBefore(at, name, Reshape(product, shape, y.placement())), rows.counts});
    const ir::Expr combined = editable_.InsertBefore(
        at, name, dialect::MakeCombineTokens(product, lookup.ids, rows.counts, lookup.axes));
    editable_.SetValue(at, Reshape(combined, ShapeOf(y), y.placement()));
    for (const ir::Expr& old : {p.x, p.matrices}) Drop(old);
    LiftUsers(at, lookup, experts);
  }

  /*! \brief Computes where the experts are what follows a product, up to the rows that it adds of
   * its experts: these would be gathered else. */
  void LiftUsers(EditableBinding* product, const Lookup& lookup, int64_t experts) {
    EditableBinding* last = product;
    for (EditableBinding* next = product; (next = editable_.OnlyUserOf(next->var)) != nullptr;) {
      auto call = ir::Call::Cast(next->value);
      if (next->block != product->block || next->cast.defined() || !call.defined() ||
          !TypeOf(call).defined() || dialect::DTensorCollective(call.op()).has_value() ||
          ir::IsOp(call.op(), "relax.matmul"))
        break;
      bool has_rows = false;
      for (const ir::Expr& arg : call.args()) has_rows = has_rows || IsLookup(arg, lookup);
      if (!has_rows) continue;
      // What is written behind the products that follow is not theirs to use.
      std::map<Key, Rows> before = lifted_;
      auto found = Lift(next, next->var, lookup, experts);
      lifted_ = std::move(before);
      if (!found || !Flat(found->value)) break;
      lifted_[KeyOf(next->var, lookup, experts, next)] = *found;
      last = next;
    }
    if (last == product) return;
    const Rows rows = lifted_.at(KeyOf(last->var, lookup, experts, last));
    const ir::DTensorType type = TypeOf(last->var);
    const std::string name = last->var.name();
    const ir::Expr flat = editable_.InsertBefore(last, name, *Flat(rows.value));
    ir::Expr combined = editable_.InsertBefore(
        last, name, dialect::MakeCombineTokens(flat, lookup.ids, rows.counts, lookup.axes));
    const ffi::Array<ir::Expr> args = ir::Call::Cast(last->value).args();
    editable_.SetValue(last, Reshape(combined, ShapeOf(type), type.placement()));
    for (const ir::Expr& arg : args) Drop(arg);
  }

  /*! \brief Rows (M, ..) as a matrix; nullopt if several dimensions behind the first have elements
   * or shards of their own. */
  static std::optional<ir::Expr> Flat(const ir::Expr& rows) {
    const ir::DTensorType type = TypeOf(rows);
    const ffi::Array<ir::Expr>& shape = ShapeOf(type);
    int wide = -1;
    for (size_t d = 1; d < shape.size(); ++d) {
      if (ir::StaticDim(shape[d]) == 1) continue;
      if (wide >= 0) return std::nullopt;
      wide = static_cast<int>(d);
    }
    if (wide < 0) return std::nullopt;
    return Reshape(rows, {shape[0], shape[wide]}, Moved(type.placement(), wide, 1));
  }

  void Drop(const ir::Expr& value) {
    EditableBinding* definition = editable_.DefinitionOf(value);
    if (definition != nullptr && definition->block != nullptr) editable_.DropUnused(definition);
  }

  /*! \brief The rows (M, D) of a product. */
  Rows RowsOf(EditableBinding* at, const Product& p, int64_t experts) {
    const ir::DTensorType x = TypeOf(p.x);
    const ir::Expr width = ShapeOf(x)[3 - p.row_dim];
    const std::string name = ir::Var::Cast(p.x).name();
    const Key key = KeyOf(p.x, p.lookup, experts, at);
    auto known = lifted_.find(key);
    if (known == lifted_.end()) {
      if (auto found = Lift(at, p.x, p.lookup, experts)) {
        known = lifted_.emplace(key, *found).first;
      }
    }
    if (known != lifted_.end()) {
      const Rows& rows = known->second;
      const ir::Placement placement = Moved(TypeOf(rows.value).placement(), 3 - p.row_dim, 1);
      const ir::Expr flat = editable_.InsertBefore(
          at, name, Reshape(rows.value, {ShapeOf(TypeOf(rows.value))[0], width}, placement));
      return {flat, rows.counts};
    }
    const ir::Expr flat = editable_.InsertBefore(
        at, name, Reshape(p.x, {ShapeOf(x)[0], width}, Moved(x.placement(), 3 - p.row_dim, 1)));
    const ir::Expr sent = editable_.InsertBefore(
        at, name, dialect::MakeDispatchTokens(flat, p.lookup.ids, experts, p.lookup.axes));
    const ir::Expr value = editable_.InsertBefore(at, name, ir::MakeTupleGetItem(sent, 0));
    const ir::Expr counts = editable_.InsertBefore(at, name, ir::MakeTupleGetItem(sent, 1));
    ffi::Array<ir::Expr> shape = ShapeOf(x);
    shape.Set(0, ShapeOf(TypeOf(value))[0]);
    const ir::Expr wide = editable_.InsertBefore(at, name, Reshape(value, shape, x.placement()));
    Keep(key, {wide, counts});
    lifted_.emplace(KeyOf(ir::Expr(), p.lookup, experts, at), Rows{value, counts});
    return {value, counts};
  }

  void Keep(const Key& key, const Rows& rows) {
    lifted_[key] = rows;
    made_.push_back(rows.value);
  }

  /*!
   * \brief A value as it is where the experts are, if it is computed row by row from products
   * there; nullopt else.
   */
  std::optional<Rows> Lift(EditableBinding* at, const ir::Expr& value, const Lookup& lookup,
                           int64_t experts) {
    const Key key = KeyOf(value, lookup, experts, at);
    if (auto known = lifted_.find(key); known != lifted_.end()) return known->second;
    EditableBinding* binding = editable_.DefinitionOf(value);
    if (binding == nullptr || binding->block != at->block || binding->cast.defined())
      return std::nullopt;
    std::optional<Rows> rows;
    if (auto item = ir::TupleGetItem::Cast(binding->value); item.defined()) {
      if (auto tuple = Lift(at, item.tuple(), lookup, experts))
        rows = Rows{ir::MakeTupleGetItem(tuple->value, item.index()), tuple->counts};
    } else if (auto call = ir::Call::Cast(binding->value); call.defined()) {
      rows = ir::IsOp(call.op(), "relax.take") ? LiftTake(at, binding, lookup, experts)
                                               : LiftCall(at, call, lookup, experts);
    }
    if (!rows) return std::nullopt;
    rows->value = editable_.InsertBefore(at, binding->var.name(), rows->value);
    Keep(key, *rows);
    return rows;
  }

  /*! \brief Whether a value is what the same choices look up in a table, as a bias of experts is,
   * maybe in another shape. */
  bool IsLookup(const ir::Expr& value, const Lookup& lookup) const {
    EditableBinding* binding = editable_.DefinitionOf(value);
    auto call = binding == nullptr ? ir::Call() : ir::Call::Cast(binding->value);
    if (!call.defined()) return false;
    for (const char* op : {"relax.expand_dims", "relax.reshape", "relax.squeeze", "relax.astype"})
      if (ir::IsOp(call.op(), op)) return IsLookup(call.args()[0], lookup);
    return ir::IsOp(call.op(), "relax.take") && call.args()[1].same_as(lookup.ids);
  }

  /*!
   * \brief Of rows where the experts are, what each looks up in a table of the experts: the product
   * of a one by the row of its expert.
   */
  std::optional<Rows> LiftTake(EditableBinding* at, EditableBinding* take, const Lookup& lookup,
                               int64_t experts) {
    auto call = ir::Call::Cast(take->value);
    const std::string mode = ir::attrs::kTakeMode.Text(call.attrs());
    const ir::DTensorType made = TypeOf(call);
    auto given = lifted_.find(KeyOf(ir::Expr(), lookup, experts, at));
    auto axes = rules::ReadAxes(ir::attrs::kTakeAxis(call.attrs()), made.tensor_ty().ndim());
    if (given == lifted_.end() || !IsLookup(take->var, lookup) || !axes || (*axes)[0] != 0 ||
        mode == "wrap" || mode == "nan" || !IsFloat(made.tensor_ty()) ||
        !ir::HasKnownShape(made.tensor_ty()))
      return std::nullopt;
    auto table = ShardOf(at, WithPadding(call.args()[0], mode), lookup, take->var.name());
    if (!table || ir::StaticDim(ShapeOf(TypeOf(*table))[0]) != experts) return std::nullopt;

    const ffi::Array<ir::Expr>& shape = ShapeOf(TypeOf(*table));
    int wide = -1;
    for (size_t d = 1; d < shape.size(); ++d) {
      if (ir::StaticDim(shape[d]) == 1) continue;
      if (wide >= 0) return std::nullopt;  // matrices
      wide = static_cast<int>(d);
    }
    if (wide < 0) return std::nullopt;
    const std::vector<int> dims = DimsOf(TypeOf(*table)), of_rows = DimsOf(made);
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      if (dims[axis] > 0 && dims[axis] != wide) return std::nullopt;
      if ((dims[axis] > 0 || of_rows[axis] > 0) && dims[axis] != of_rows[axis]) return std::nullopt;
    }
    const std::string name = take->var.name();
    const ir::Placement flat = Moved(TypeOf(*table).placement(), wide, 2);
    const ir::Expr matrices = editable_.InsertBefore(
        at, name, Reshape(*table, {shape[0], ir::MakeInt(1), shape[wide]}, flat));
    const ir::Expr rows = editable_.InsertBefore(
        at, name,
        dialect::MakeGroupedMatmul(Ones(at, given->second.value, lookup, made), matrices,
                                   given->second.counts, false, made.tensor_ty().dtype()));
    ffi::Array<ir::Expr> result = ShapeOf(made);
    result.Set(0, ShapeOf(TypeOf(rows))[0]);
    return Rows{Reshape(rows, result, made.placement()), given->second.counts};
  }

  /*! \brief A table of the experts, sharded as they are. */
  std::optional<ir::Expr> ShardOf(EditableBinding* at, const ir::Expr& table, const Lookup& lookup,
                                  const std::string& name) {
    const ir::DTensorType type = TypeOf(table);
    if (!type.defined() || !ir::Var::Is(table) ||
        !ir::StructurallyEqual(type.device_mesh(), TypeOf(lookup.ids).device_mesh()) ||
        type.tensor_ty().ndim() < 2)
      return std::nullopt;
    std::vector<int> dims = DimsOf(type);
    for (int dim : dims)
      if (dim == 0) return std::nullopt;
    for (int axis : lookup.axes) {
      if (dims[axis] >= 0) return std::nullopt;
      dims[axis] = 0;
    }
    const ir::DTensorType target =
        ir::MakeDTensorType(type.tensor_ty(), type.device_mesh(), ir::MakePlacement(dims));
    if (EditableBinding* gather = editable_.DefinitionOf(table)) {
      auto step = ReadResharding(gather->value, &meshes_);
      if (step && step->kind == mesh::CollectiveKind::kAllGather) {
        const ir::Expr source = ir::Call::Cast(gather->value).args()[0];
        if (ir::Var::Is(source) && ir::StructurallyEqual(source.ty(), target) &&
            editable_.IsVisible(source, at))
          return source;
      }
    }
    if (!editable_.IsVisible(table, at)) return std::nullopt;
    return editable_.InsertBefore(
        at, name, dialect::MakeCollective(mesh::CollectiveKind::kSlice, table, target));
  }

  /*! \brief Ones, one for each row. */
  ir::Expr Ones(EditableBinding* at, const ir::Expr& rows, const Lookup& lookup,
                const ir::DTensorType& like) {
    const ir::DTensorType type = TypeOf(rows);
    const ffi::Array<ir::Expr> shape = {ShapeOf(type)[0], ir::MakeInt(1)};
    const ir::TensorType tensor = ir::MakeTensorType(shape, like.tensor_ty());
    const std::vector<int> whole(DimsOf(type).size(), -1);
    ir::Call ones =
        ir::make::kOnes(ir::MakeShape(shape), like.tensor_ty().dtype()).cast<ir::Call>();
    ir::SetType(ones, tensor);
    // No operand says on which mesh they are.
    const ir::Expr bound = editable_.InsertBefore(
        at, "ones",
        dialect::MakeRedistribute(
            editable_.InsertBefore(at, "ones", ones),
            ir::MakeDTensorType(tensor, type.device_mesh(), ir::MakePlacement(whole))));
    return editable_.InsertBefore(
        at, "ones",
        dialect::MakeCollective(
            mesh::CollectiveKind::kSlice, bound,
            ir::MakeDTensorType(tensor, type.device_mesh(), TypeOf(lookup.ids).placement())));
  }

  std::optional<Rows> LiftCall(EditableBinding* at, const ir::Call& call, const Lookup& lookup,
                               int64_t experts) {
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
      std::optional<Rows> rows = Lift(at, arg, lookup, experts);
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
    const ir::Type type = WithRows(call.ty(), ShapeOf(TypeOf(found->value))[0]);
    return Rows{rules::ResizedCall(call, type, args), found->counts};
  }

  static bool IsTensor(const ir::Expr& arg) {
    return TypeOf(arg).defined() || ir::TensorType::Is(arg.ty());
  }

  static bool AreFloats(const std::vector<ir::TensorType>& types) {
    for (const ir::TensorType& type : types) {
      if (!IsFloat(type) || !ir::HasKnownShape(type)) return false;
    }
    return true;
  }

  /*! \brief Whether a tensor has the factor as its first dimension, alone; or not at all. */
  static bool IsByRow(const rules::TensorFactors& factors, int row_factor, bool has_rows) {
    for (size_t d = 0; d < factors.size(); ++d) {
      bool has_factor = false;
      for (int factor : factors[d]) has_factor = has_factor || factor == row_factor;
      if (has_factor != (has_rows && d == 0)) return false;
      if (has_factor && factors[d].size() != 1) return false;
    }
    return !has_rows || !factors.empty();
  }

  EditableFunction& editable_;
  dialect::MeshTable& meshes_;
  const bool is_offered_;
  Tally& tally_;
  // By value, choices, experts, axes and block; without a value, the rows that were dispatched.
  std::map<Key, Rows> lifted_;
  std::vector<ir::Expr> made_;
};

}  // namespace

void DispatchExperts(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions)
    Dispatch(function.editable.get(), program, tally).Run();
}

}  // namespace optimize
}  // namespace distir
