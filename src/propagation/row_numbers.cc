// Writes lookups and writes by row number and position as those by position in each row.
#include "propagation/row_numbers.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "propagation/constant_positions.h"
#include "propagation/separated_call.h"
#include "rules/call/infer_type.h"
#include "rules/factor/axes.h"

namespace distir::propagation {

namespace ffi = tvm::ffi;

namespace {

/*! \brief True for a lookup at several positions at once, of no batch. */
bool IsLookup(const ir::Call& call) {
  return ir::IsOp(call.op(), "relax.index_tensor") ||
         (ir::IsOp(call.op(), "relax.gather_nd") &&
          ir::attrs::kGatherNDBatchDims.Int(call.attrs(), 0) == 0);
}

/*! \brief True for a write at several positions at once. */
bool IsWrite(const ir::Call& call) {
  return ir::IsOp(call.op(), "relax.scatter_nd") || ir::IsOp(call.op(), "relax.index_put");
}

class RowNumbers : public ir::FunctionRewriter {
 public:
  bool any() const { return any_; }

 protected:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    const auto call = ir::Call::Cast(value);
    if (call.defined()) {
      definitions_.emplace(var.get(), call);
      const ir::Expr found = IsLookup(call)  ? BatchedLookup(var, call)
                             : IsWrite(call) ? BatchedWrite(var, call)
                                             : ir::Expr();
      if (found.get() != nullptr) {
        any_ = true;
        Bind(var, found);
        return;
      }
    }
    ir::FunctionRewriter::RewriteVarBinding(var, value);
  }

 private:
  /*! \brief Positions behind row numbers. */
  struct Columns {
    std::vector<ir::Expr> behind;  // empty where there are no row numbers, or nothing behind them
    size_t rank = 0;               // dimensions of positions
    bool is_joined = false;        // they have a last dimension, along which they are joined
  };

  /*! \brief The positions of a call on data (n, ..) whose first ones count its rows. */
  Columns BehindRowNumbers(const ir::Call& call) const {
    const std::optional<Dims> data = KnownShape(call.args()[0]);
    if (!data || data->empty()) return {};
    Columns columns;
    std::vector<ir::Expr> all = ir::Tuple::Is(call.args()[1])
                                    ? FieldsOf(call.args()[1])
                                    : ColumnsOf(call.args()[1], &columns.is_joined);
    if (all.size() < 2 || !CountsRows(all[0], (*data)[0])) return {};
    columns.rank = KnownShape(all[0])->size();
    for (size_t i = 1; i < all.size(); ++i) {
      const std::optional<Dims> shape = KnownShape(all[i]);
      if (!shape || shape->size() != columns.rank || !ir::SameDim((*shape)[0], (*data)[0]))
        return {};
      if (!columns.is_joined && !SameDims(*shape, *KnownShape(all[1]))) return {};
    }
    columns.behind.assign(all.begin() + 1, all.end());
    return columns;
  }

  /*! \brief The lookup in each row; null where a call is none. */
  ir::Expr BatchedLookup(const ir::Var& var, const ir::Call& call) {
    const std::optional<Dims> result = KnownShape(var);
    const Columns columns = BehindRowNumbers(call);
    if (columns.behind.empty() || !result) return ir::Expr();
    ffi::Array<ir::Expr> positions;
    const auto dtype_of = [](const ir::Expr& column) {
      return ir::TensorType::Cast(column.ty()).dtype();
    };
    const bool are_alike = std::all_of(
        columns.behind.begin(), columns.behind.end(),
        [&](const auto& each) { return dtype_of(each) == dtype_of(columns.behind[0]); });
    const int64_t rank = static_cast<int64_t>(columns.rank);
    for (const ir::Expr& each : columns.behind) {
      ir::Expr column = Rewrite(each);
      if (!are_alike) column = Typed(var, ir::make::kAstype(column, DLDataType{kDLInt, 64, 1}));
      const ffi::Array<int64_t> last{rank};
      positions.push_back(columns.is_joined ? column
                                            : Typed(var, ir::make::kExpandDims(column, last)));
    }
    const int64_t axis = columns.is_joined ? rank - 1 : rank;
    const ir::Expr indices = positions.size() == 1
                                 ? positions[0]
                                 : Typed(var, ir::make::kConcat(ir::MakeTuple(positions), axis));
    const auto made =
        ir::make::kGatherNd(Rewrite(call.args()[0]), indices, int64_t{1}).cast<ir::Call>();
    const ir::Type type = rules::InferGlobalType(made);
    const ir::TensorType found = ir::TensorType::Cast(type);
    const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(found);
    if (!SameDims(Dims(shape.begin(), shape.end()), *result)) return ir::Expr();
    return ir::MakeCall(var.ty(), made.op(), made.args(), made.attrs(), {}, call.span());
  }

  /*!
   * \brief The write in each row; null where a call is none, or where it states several positions
   * in a row. Data (n, m, k..), positions (n, t..) and values (n, t.., k..): positions become those
   * of elements (n, t, k..), alike along k.
   */
  ir::Expr BatchedWrite(const ir::Var& var, const ir::Call& call) {
    const Columns columns = BehindRowNumbers(call);
    if (columns.behind.size() != 1) return ir::Expr();
    const std::optional<Dims> data = KnownShape(call.args()[0]),
                              written = KnownShape(call.args()[2]),
                              stated = KnownShape(columns.behind[0]);
    const size_t rank = columns.rank - (columns.is_joined ? 1 : 0);  // without the joined dimension
    if (!written || written->size() != rank + data->size() - 2) return ir::Expr();
    ffi::Array<ir::Expr> rows{(*stated)[0]};
    rows.push_back(ir::Product(Dims(stated->begin() + 1, stated->begin() + rank)));
    ffi::Array<ir::Expr> apart = rows, all = rows;  // positions with dimensions of 1, and without
    for (size_t d = 0; d < written->size(); ++d) {
      const ir::Expr& size = d < rank ? (*stated)[d] : (*data)[d - rank + 2];
      if (!ir::SameDim((*written)[d], size)) return ir::Expr();  // values that broadcast
      if (d < rank) continue;
      apart.push_back(ir::MakeInt(1));
      all.push_back(size);
    }
    const bool puts = ir::IsOp(call.op(), "relax.index_put");
    const bool adds = puts && ir::attrs::kIndexPutAccumulate.Bool(call.attrs());
    const std::string mode =
        puts ? (adds ? "add" : "update") : ir::attrs::kScatterNDReduction.Text(call.attrs());
    ir::Expr positions =
        Typed(var, ir::make::kReshape(Rewrite(columns.behind[0]), ir::MakeShape(apart)));
    if (!SameDims(Dims(apart.begin(), apart.end()), Dims(all.begin(), all.end())))
      positions = Typed(var, ir::make::kBroadcastTo(positions, ir::MakeShape(all)));
    const ir::Expr values =
        Typed(var, ir::make::kReshape(Rewrite(call.args()[2]), ir::MakeShape(all)));
    const auto made = ir::make::kScatterElements(Rewrite(call.args()[0]), positions, values,
                                                 int64_t{1}, ffi::String(mode))
                          .cast<ir::Call>();
    return ir::MakeCall(var.ty(), made.op(), made.args(), made.attrs(), {}, call.span());
  }

  ir::Expr Typed(const ir::Var& like, const ffi::Any& made) {
    const ir::Call call = made.cast<ir::Call>();
    return Emit(like.name(),
                ir::MakeCall(rules::InferGlobalType(call), call.op(), call.args(), call.attrs()));
  }

  /*!
   * \brief The tensors that stand one behind the other in the last dimension of positions; empty
   * where they are not known.
   * \param is_joined Whether they have that dimension, as those of a concat.
   */
  std::vector<ir::Expr> ColumnsOf(const ir::Expr& positions, bool* is_joined) const {
    const ir::Call* made = Definition(positions);
    const std::optional<Dims> shape = KnownShape(positions);
    if (made == nullptr || !shape) return {};
    *is_joined = ir::IsOp(made->op(), "relax.concat");
    if (!*is_joined && !ir::IsOp(made->op(), "relax.stack")) return {};
    const int rank = static_cast<int>(shape->size());
    const ffi::Any axis =
        *is_joined ? ir::attrs::kConcatAxis(made->attrs()) : ir::attrs::kStackAxis(made->attrs());
    const auto axes = rules::ReadAxes(axis, rank);
    const bool is_last = axes && axes->size() == 1 && (*axes)[0] == rank - 1;
    return is_last ? FieldsOf(made->args()[0]) : std::vector<ir::Expr>();
  }

  static std::vector<ir::Expr> FieldsOf(const ir::Expr& tensors) {
    std::vector<ir::Expr> fields;
    const auto tuple = ir::Tuple::Cast(tensors);
    if (!tuple.defined()) return fields;
    for (const ir::Expr& field : tuple.fields()) {
      if (!ir::TensorType::Is(field.ty())) return {};
      fields.push_back(field);
    }
    return fields;
  }

  /*! \brief True if a tensor has each row's number in the row's place: (n, 1, ..), or that
   * broadcast. */
  bool CountsRows(const ir::Expr& value, const ir::Expr& rows) const {
    const std::optional<Dims> shape = KnownShape(value);
    const ir::Call* made = Definition(value);
    if (!shape || shape->empty() || !ir::SameDim((*shape)[0], rows)) return false;
    if (const auto numbers = ConstantIntegers(value)) {
      for (size_t i = 0; i < numbers->size(); ++i) {
        if ((*numbers)[i] != static_cast<int64_t>(i)) return false;
      }
      return static_cast<int64_t>(numbers->size()) == ir::StaticDim(rows);
    }
    if (made == nullptr) return false;
    if (ir::IsOp(made->op(), "relax.broadcast_to")) {
      const std::optional<Dims> source = KnownShape(made->args()[0]);
      return source && source->size() == shape->size() && CountsRows(made->args()[0], rows);
    }
    for (size_t d = 1; d < shape->size(); ++d) {
      if (ir::StaticDim((*shape)[d]) != 1) return false;
    }
    if (ir::IsOp(made->op(), "relax.arange")) {
      auto is = [made](size_t i, int64_t number) {
        return ir::IntImm::Is(made->args()[i]) &&
               ir::IntImm::Cast(made->args()[i]).value() == number;
      };
      return is(0, 0) && is(2, 1);
    }
    const bool keeps = ir::IsOp(made->op(), "relax.astype") ||
                       ir::IsOp(made->op(), "relax.expand_dims") ||
                       ir::IsOp(made->op(), "relax.reshape");
    return keeps && CountsRows(made->args()[0], rows);
  }

  const ir::Call* Definition(const ir::Expr& value) const {
    const auto found = definitions_.find(value.get());
    return found == definitions_.end() ? nullptr : &found->second;
  }

  std::unordered_map<const ffi::Object*, ir::Call> definitions_;  // by variable
  bool any_ = false;
};

}  // namespace

ir::Function BatchOverRows(const ir::Function& function) {
  bool any = false;
  ir::VisitBindings(function.body(), [&any](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    any = any || (call.defined() && (IsLookup(call) || IsWrite(call)));
  });
  if (!any) return function;
  RowNumbers rows;
  ir::Function written = rows.RewriteFunction(function);
  if (!rows.any()) return function;
  return ir::MakeFunction(written.params(), written.body(), function.ret_ty(), function.is_pure(),
                          function.attrs());
}

}  // namespace distir::propagation
