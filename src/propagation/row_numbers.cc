// Writes lookups by row number and position as lookups by position in each row.
#include "propagation/row_numbers.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
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

class Lookups : public ir::FunctionRewriter {
 public:
  bool any() const { return any_; }

 protected:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    const auto call = ir::Call::Cast(value);
    if (call.defined()) {
      definitions_.emplace(var.get(), call);
      if (const ir::Expr found = Batched(var, call); found.get() != nullptr) {
        any_ = true;
        Bind(var, found);
        return;
      }
    }
    ir::FunctionRewriter::RewriteVarBinding(var, value);
  }

 private:
  /*! \brief The lookup in each row; null where a call is none. */
  ir::Expr Batched(const ir::Var& var, const ir::Call& call) {
    if (!IsLookup(call)) return ir::Expr();
    const bool is_tensor = ir::Tuple::Is(call.args()[1]);
    const std::optional<Dims> data = KnownShape(call.args()[0]);
    const std::optional<Dims> result = KnownShape(var);
    if (!data || !result || data->empty()) return ir::Expr();
    bool is_joined = false;
    const std::vector<ir::Expr> columns =
        is_tensor ? FieldsOf(call.args()[1]) : ColumnsOf(call.args()[1], &is_joined);
    if (columns.size() < 2 || !CountsRows(columns[0], (*data)[0])) return ir::Expr();
    const size_t rank = KnownShape(columns[0])->size();
    for (size_t i = 1; i < columns.size(); ++i) {
      const std::optional<Dims> shape = KnownShape(columns[i]);
      if (!shape || shape->size() != rank || !ir::SameDim((*shape)[0], (*data)[0]))
        return ir::Expr();
      if (!is_joined && !SameDims(*shape, *KnownShape(columns[1]))) return ir::Expr();
    }
    ffi::Array<ir::Expr> positions;
    const auto dtype_of = [](const ir::Expr& column) {
      return ir::TensorType::Cast(column.ty()).dtype();
    };
    const bool are_alike = std::all_of(columns.begin() + 1, columns.end(), [&](const auto& each) {
      return dtype_of(each) == dtype_of(columns[1]);
    });
    for (size_t i = 1; i < columns.size(); ++i) {
      ir::Expr column = Rewrite(columns[i]);
      if (!are_alike) column = Typed(var, ir::make::kAstype(column, DLDataType{kDLInt, 64, 1}));
      const ffi::Array<int64_t> last{static_cast<int64_t>(rank)};
      positions.push_back(is_joined ? column : Typed(var, ir::make::kExpandDims(column, last)));
    }
    const int64_t axis = static_cast<int64_t>(is_joined ? rank - 1 : rank);
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

  /*! \brief True if a tensor has each row's number in the row's place: (n, 1, ..). */
  bool CountsRows(const ir::Expr& value, const ir::Expr& rows) const {
    const std::optional<Dims> shape = KnownShape(value);
    if (!shape || shape->empty() || !ir::SameDim((*shape)[0], rows)) return false;
    for (size_t d = 1; d < shape->size(); ++d) {
      if (ir::StaticDim((*shape)[d]) != 1) return false;
    }
    const ir::Call* made = Definition(value);
    if (made == nullptr) return false;
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

ir::Function BatchLookups(const ir::Function& function) {
  bool any = false;
  ir::VisitBindings(function.body(), [&any](const ir::Binding& binding) {
    const ir::Call call = ir::BoundCall(binding);
    any = any || (call.defined() && IsLookup(call));
  });
  if (!any) return function;
  Lookups lookups;
  ir::Function written = lookups.RewriteFunction(function);
  if (!lookups.any()) return function;
  return ir::MakeFunction(written.params(), written.body(), function.ret_ty(), function.is_pure(),
                          function.attrs());
}

}  // namespace distir::propagation
