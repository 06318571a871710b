// Recognises lookups in a table of experts, gathered or summed.
#include "optimize/experts/lookup.h"

#include <algorithm>
#include <string>

#include "dialect/operators/collective.h"
#include "ir/operator_attrs.h"
#include "ir/symbolic.h"
#include "ir/whole_number.h"
#include "optimize/experts/types.h"
#include "optimize/program/resharding.h"
#include "rules/call/stated_sizes.h"
#include "rules/factor/axes.h"

namespace distir::optimize {

namespace {

std::vector<int> AxesOfRows(const ir::Expr& table) {
  std::vector<int> axes;
  const std::vector<int> dims = DimsOf(TypeOf(table));
  for (int axis = 0; axis < static_cast<int>(dims.size()); ++axis) {
    if (dims[axis] == 0) axes.push_back(axis);
  }
  return axes;
}

class Reader {
 public:
  Reader(const EditableFunction& editable, dialect::MeshTable* meshes)
      : editable_(editable), meshes_(*meshes) {}

  /*! \brief R.take of a table that every device has all of, maybe since it was gathered. */
  std::optional<Lookup> ReadTake(const ir::Expr& value) {
    const ir::Call take = CallBy("relax.take", value);
    if (!take.defined() || !IsAlong(take, 0) || !IsList(take.args()[1])) return std::nullopt;
    const std::string mode = ir::attrs::kTakeMode.Text(take.attrs());
    if (mode == "wrap" || mode == "nan") return std::nullopt;
    Lookup lookup{WithPadding(take.args()[0], mode), take.args()[1], {}, 0};
    EditableBinding* gather = editable_.DefinitionOf(lookup.table);
    auto step = gather == nullptr ? std::nullopt : ReadResharding(gather->value, &meshes_);
    const bool is_gathered = step && step->kind == mesh::CollectiveKind::kAllGather &&
                             !step->source.dims[0].empty() && step->target.dims[0].empty();
    if (!is_gathered) {
      lookup.table = take.args()[0];
      const bool is_whole = TypeOf(lookup.table).defined() && AxesOfRows(lookup.table).empty();
      return is_whole ? std::optional<Lookup>(lookup) : std::nullopt;
    }
    lookup.table = ir::Call::Cast(gather->value).args()[0];
    lookup.axes = AxesOfRows(lookup.table);
    const double bytes = LocalBytes(TypeOf(lookup.table).tensor_ty(), step->source);
    lookup.sent_bytes = bytes * static_cast<double>(mesh::NumShards(step->source.dims[0]) - 1);
    return lookup;
  }

  /*! \brief The sum of what every device looks up in its entries. */
  std::optional<Lookup> ReadSum(const ir::Expr& value) {
    EditableBinding* reduction = editable_.DefinitionOf(value);
    auto step = reduction == nullptr ? std::nullopt : ReadResharding(reduction->value, &meshes_);
    const bool is_scattered = step && step->kind == mesh::CollectiveKind::kReduceScatter;
    if (!step || (step->kind != mesh::CollectiveKind::kAllReduce && !is_scattered))
      return std::nullopt;
    const auto collective = ir::Call::Cast(reduction->value);
    if (dialect::ReductionOf(collective) != mesh::Reduction::kSum) return std::nullopt;
    const ir::Call sum = CallBy("relax.sum", collective.args()[0]);
    if (!sum.defined() || ir::attrs::kStatisticalKeepdims.Bool(sum.attrs()) ||
        !IsFirst(ir::attrs::kStatisticalAxis(sum.attrs()), sum.args()[0]))
      return std::nullopt;
    const ir::Call where = CallBy("relax.where", sum.args()[0]);
    const ir::Call take = where.defined() ? CallBy("relax.take", where.args()[1]) : ir::Call();
    const ir::Call parts =
        take.defined() && IsAlong(take, 1) ? CallBy("relax.reshape", take.args()[0]) : ir::Call();
    const ir::Call within =
        parts.defined() ? CallBy("relax.floor_mod", take.args()[1]) : ir::Call();
    if (!within.defined() || !TypeOf(parts.args()[0]).defined() || NumberOf(where.args()[2]) != 0)
      return std::nullopt;
    const ir::Expr bounded = within.args()[0];
    Lookup lookup{parts.args()[0], AsStated(bounded), AxesOfRows(parts.args()[0]), 0};
    if (!IsList(lookup.ids)) return std::nullopt;
    const ir::NodeArray<ir::Expr>& shape = ShapeOf(TypeOf(take.args()[0]));
    const int64_t devices = ir::StaticDim(shape[0]), of_each = ir::StaticDim(shape[1]);
    if (shape.size() != ShapeOf(TypeOf(lookup.table)).size() + 1 || devices < 1 || of_each < 1 ||
        lookup.num_entries() != devices * of_each || NumberOf(within.args()[1]) != of_each ||
        !IsOwn(where.args()[0], bounded, devices, of_each) ||
        dialect::ReduceAxes(collective) != lookup.axes)
      return std::nullopt;
    const double bytes = LocalBytes(TypeOf(value).tensor_ty(), step->target);
    const double shards = static_cast<double>(devices);
    lookup.sent_bytes = is_scattered ? bytes * (shards - 1) : 2 * bytes * (shards - 1) / shards;
    if (is_scattered) {
      lookup.ids = ScatteredIds(lookup, TypeOf(value));
      if (!lookup.ids.defined()) return std::nullopt;
    }
    return lookup;
  }

 private:
  ir::Call CallBy(const char* op, const ir::Expr& value) const {
    EditableBinding* binding = DefinitionBy(op, value, editable_);
    return binding == nullptr ? ir::Call() : ir::Call::Cast(binding->value);
  }

  static bool IsList(const ir::Expr& ids) {
    const ir::DTensorType type = TypeOf(ids);
    return type.defined() && type.tensor_ty().ndim() == 1 && ir::Var::Is(ids);
  }

  static bool IsAlong(const ir::Call& take, int axis) {
    const ir::DTensorType type = TypeOf(take.args()[0]);
    if (!type.defined() || type.tensor_ty().ndim() < 1) return false;
    auto axes = rules::ReadAxes(ir::attrs::kTakeAxis(take.attrs()), type.tensor_ty().ndim());
    return axes && axes->size() == 1 && (*axes)[0] == axis;
  }

  static bool IsFirst(const ffi::Any& axis, const ir::Expr& value) {
    auto axes = rules::ReadAxes(axis, TypeOf(value).tensor_ty().ndim());
    return axes && axes->size() == 1 && (*axes)[0] == 0;
  }

  /*! \brief A whole number that is a constant, maybe cast; -1 for others. */
  int64_t NumberOf(const ir::Expr& value) const {
    if (const ir::Call cast = CallBy("relax.astype", value); cast.defined())
      return NumberOf(cast.args()[0]);
    auto number = ir::WholeNumber(value);
    return number && *number >= 0 ? *number : -1;
  }

  ir::Expr WithoutReshapes(ir::Expr value) const {
    for (const char* op : {"relax.astype", "relax.expand_dims"}) {
      if (const ir::Call call = CallBy(op, value); call.defined())
        return WithoutReshapes(call.args()[0]);
    }
    return value;
  }

  /*! \brief Ids before negative ones were counted from the end, and those outside moved within
   * (ops/positions.h): tables of the same ids have chains of their own. */
  ir::Expr AsStated(const ir::Expr& ids) const {
    const ir::Call clip = CallBy("relax.clip", ids);
    const ir::Call where = clip.defined() ? CallBy("relax.where", clip.args()[0]) : ir::Call();
    const ir::Call less = where.defined() ? CallBy("relax.less", where.args()[0]) : ir::Call();
    const bool is_counted = less.defined() && less.args()[0].same_as(where.args()[2]);
    return is_counted ? less.args()[0] : ids;
  }

  /*! \brief True if a condition says which ids are of entries that a device has. */
  bool IsOwn(const ir::Expr& condition, const ir::Expr& ids, int64_t devices,
             int64_t of_each) const {
    const ir::Call equal = CallBy("relax.equal", condition);
    if (!equal.defined()) return false;
    const ir::Call device = CallBy("relax.floor_divide", WithoutReshapes(equal.args()[0]));
    if (!device.defined() || !device.args()[0].same_as(ids) ||
        NumberOf(device.args()[1]) != of_each)
      return false;
    EditableBinding* own = editable_.DefinitionOf(WithoutReshapes(equal.args()[1]));
    auto slice = own == nullptr ? ir::Call() : ir::Call::Cast(own->value);
    if (!slice.defined() || dialect::DTensorCollective(slice.op()) != mesh::CollectiveKind::kSlice)
      return false;
    const ir::Call whole = CallBy("relax.dist.redistribute", slice.args()[0]);
    const ir::Call range = whole.defined() ? CallBy("relax.arange", whole.args()[0]) : ir::Call();
    return range.defined() && ir::StaticDim(range.args()[0]) == 0 &&
           ir::StaticDim(range.args()[1]) == devices && ir::StaticDim(range.args()[2]) == 1;
  }

  /*! \brief The shards of ids that were gathered for the lookup, of which each device gets what its
   * own shard has looked up; null for others. */
  ir::Expr ScatteredIds(const Lookup& lookup, const ir::DTensorType& made) {
    EditableBinding* gather = editable_.DefinitionOf(lookup.ids);
    auto step = gather == nullptr ? std::nullopt : ReadResharding(gather->value, &meshes_);
    if (!step || step->kind != mesh::CollectiveKind::kAllGather) return ir::Expr();
    const ir::Expr ids = ir::Call::Cast(gather->value).args()[0];
    if (!IsList(ids)) return ir::Expr();
    const std::vector<int> dims = DimsOf(TypeOf(ids)), of_made = DimsOf(made);
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      if ((dims[axis] == 0) != (of_made[axis] == 0)) return ir::Expr();
    }
    return ids;
  }

  /*! \brief The padded entries of which a table is the first ones; else the table itself. If ids
   * outside of the table mean its last row, that row is not the last of the padded ones. */
  ir::Expr WithPadding(const ir::Expr& table, const std::string& mode) const {
    const ir::Call cut = CallBy("relax.strided_slice", table);
    if (!cut.defined() || mode == "clip") return table;
    const auto is_one = [&cut](size_t arg, int64_t value) {
      auto stated = rules::IntegersOf(cut.args()[arg]);
      return stated && stated->size() == 1 && (*stated)[0] == value;
    };
    const bool has_steps = cut.args().size() > 4 && !is_one(4, 1);
    return is_one(1, 0) && is_one(2, 0) && !has_steps ? cut.args()[0] : table;
  }

  const EditableFunction& editable_;
  dialect::MeshTable& meshes_;
};

}  // namespace

int64_t Lookup::num_entries() const { return ir::StaticDim(ShapeOf(TypeOf(table))[0]); }

EditableBinding* DefinitionBy(const char* op, const ir::Expr& value,
                              const EditableFunction& editable) {
  EditableBinding* binding = editable.DefinitionOf(value);
  auto call = binding == nullptr ? ir::Call() : ir::Call::Cast(binding->value);
  return call.defined() && ir::IsOp(call.op(), op) ? binding : nullptr;
}

std::optional<Lookup> ReadLookup(const ir::Expr& value, const EditableFunction& editable,
                                 dialect::MeshTable* meshes) {
  if (!TypeOf(value).defined()) return std::nullopt;
  Reader reader(editable, meshes);
  if (auto lookup = reader.ReadTake(value)) return lookup;
  return reader.ReadSum(value);
}

}  // namespace distir::optimize
