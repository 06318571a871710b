// dispatch_weighted: if all experts compute all tokens, with weights that are zero for experts that
// were not chosen, only pairs with nonzero weights are computed, and only their rows are sent.
//
//     all = R.dist.all_gather(x, ..)               all = R.dist.gather_rows(x, m, ..)
//     h = R.matmul(all, w)                         t = R.dist.select_pairs(all, m)
//     y = R.multiply(h, m)                    ->   h = R.dist.grouped_matmul(t[0], w, t[1])
//     p = R.sum(y, axis=[0])                       p = R.dist.place_pairs(h * weights, m)
//     z = R.dist.reduce_scatter(p, ..)             z = R.dist.scatter_rows(p, m, ..)
//
// These pairs are read off the weights when the program runs. So the result is right
// whatever the weights turn out to be: if more of them are not zero than their form suggests, more
// pairs are computed and sent.
#include <algorithm>
#include <optional>
#include <vector>

#include "abi/collective.h"
#include "dialect/operators/collective.h"
#include "dialect/operators/pair_selection.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/symbolic.h"
#include "optimize/experts/types.h"
#include "optimize/optimization.h"
#include "optimize/pairs/moved_sum.h"
#include "optimize/pairs/pair_rows.h"
#include "optimize/pairs/weighted_sum.h"
#include "rules/factor/axes.h"
#include "support/contains.h"

namespace distir::optimize {

namespace {

class DispatchPairs {
 public:
  DispatchPairs(EditableFunction* editable, const Program& program, Tally* tally)
      : editable_(*editable),
        masks_(*editable),
        sums_(*editable),
        is_offered_(IsOffered(program.options, abi::Collective::kSelectPairs)),
        tally_(*tally) {}

  void Run() {
    if (!SlotMasks::MayBeIn(editable_.Bindings())) return;
    for (EditableBinding* binding : editable_.Bindings())
      SumBeforeMoving(&editable_, &masks_, binding);
    for (EditableBinding* binding : editable_.Bindings()) {
      if (binding->dropped || binding->block == nullptr || binding->cast.defined()) continue;
      std::optional<Outcome> last;
      for (const WeightedSum& sum : sums_.Read(binding->value)) {
        Outcome outcome = Write(binding, sum);
        if (outcome.kind != Outcome::kNoExperts) last = outcome;
        if (outcome.kind == Outcome::kWritten) break;
      }
      if (last) last->kind == Outcome::kWritten ? void(++tally_.matched) : tally_.Skip(last->why);
    }
  }

 private:
  /*! \brief Outcome for a masked sum. Not every one sums over experts: a lookup in a sharded table
   * is a masked sum, too. */
  struct Outcome {
    enum { kWritten, kNoExperts, kSkipped } kind;
    const char* why = "";  // it was skipped
  };

  Outcome Write(EditableBinding* at, const WeightedSum& sum) {
    if (!editable_.IsVisible(sum.weights, at))
      return {Outcome::kSkipped, "weights are not visible"};
    std::vector<ir::Expr> made;
    const auto bind = [&](const ir::Expr& value) {
      made.push_back(editable_.InsertBefore(at, ir::Var::Cast(sum.weights).name(), value));
      return made.back();
    };
    const ir::Expr weights = WeightsOf(sum, bind);
    PairRows rows(&editable_, at, sum, weights);
    const ir::Expr result = weights.defined() ? Result(at, sum, weights, &rows) : ir::Expr();
    made.insert(made.end(), rows.made().begin(), rows.made().end());
    const bool written = result.defined() && rows.num_products() > 0 && is_offered_;
    if (written) {
      const ffi::Array<ir::Expr> before = Operands(at);
      editable_.SetValue(at, result);
      for (const ir::Expr& old : before) Drop(old);
    }
    for (auto value = made.rbegin(); value != made.rend(); ++value) Drop(*value);
    if (!written && !rows.has_products()) return {Outcome::kNoExperts};
    if (!is_offered_) return {Outcome::kSkipped, "the runtime does not select pairs"};
    if (!written) return {Outcome::kSkipped, "what experts compute is not computed token by token"};
    Scatter(at, sum);
    for (const SelectedTokens& tokens : rows.tokens()) Gather(tokens, sum, weights);
    return {Outcome::kWritten};
  }

  static ffi::Array<ir::Expr> Operands(const EditableBinding* at) {
    ffi::Array<ir::Expr> all;
    VisitVarsOf(at->value, [&all](const ir::Expr& var) { all.push_back(var); });
    return all;
  }

  void Drop(const ir::Expr& value) {
    EditableBinding* definition = editable_.DefinitionOf(value);
    if (definition != nullptr && definition->block != nullptr) editable_.DropUnused(definition);
  }

  /*! \brief The weights as a matrix (tokens, experts). */
  ir::Expr WeightsOf(const WeightedSum& sum,
                     const std::function<ir::Expr(const ir::Expr&)>& bind) const {
    const ir::Expr cube = AsCube(sum.weights, sum.of_weights, sum.num_experts, bind);
    if (!cube.defined()) return cube;
    const ir::NodeArray<ir::Expr>& shape = ShapeOf(TypeOf(cube));
    return bind(Reshaped(cube, {shape[0], shape[1]}, DimsOf(TypeOf(cube))));
  }

  /*! \brief The sum computed by pairs, not bound; null if that is impossible. */
  ir::Expr Result(EditableBinding* at, const WeightedSum& sum, const ir::Expr& weights,
                  PairRows* rows) {
    ir::Expr flat;
    for (size_t i = 0; i < sum.summed.size(); ++i) {
      const ir::Expr lifted = rows->Lift(sum.summed[i], sum.of_summed[i]);
      const ir::Expr each = lifted.defined() ? rows->Flat(lifted, sum.of_summed[i]) : ir::Expr();
      if (!each.defined()) return ir::Expr();
      flat = flat.defined() ? Product(rows, flat, each) : each;
      if (!flat.defined()) return ir::Expr();
    }
    const ir::DTensorType type = TypeOf(at->var);
    const ir::Expr placed = rows->Bind(at->var.name(), dialect::MakePlacePairs(flat, weights));
    // Tokens in front, outermost first, then one dimension that is wide.
    int row = -1, wide = -1;
    for (int d = 0; d < static_cast<int>(sum.of_result.size()); ++d) {
      if (ir::StaticDim(ShapeOf(type)[d]) == 1) continue;
      const bool is_token = sum.of_result[d].has_tokens();
      if (wide >= 0) return ir::Expr();
      if (is_token && row < 0) {
        if (d != RowDim(sum.of_result)) return ir::Expr();
        row = d;
      }
      if (!is_token) wide = d;
    }
    std::vector<int> dims = DimsOf(TypeOf(placed));
    for (int& dim : dims) dim = dim < 0 ? -1 : dim == 0 ? row : wide;
    if (dims != DimsOf(type) ||
        TypeOf(placed).tensor_ty().dtype().code != type.tensor_ty().dtype().code ||
        TypeOf(placed).tensor_ty().dtype().bits != type.tensor_ty().dtype().bits)
      return ir::Expr();
    return Reshaped(placed, ShapeOf(type), dims);
  }

  /*! \brief Rows times rows, of which one has a column for each, or one column. */
  static ir::Expr Product(PairRows* rows, const ir::Expr& a, const ir::Expr& b) {
    const ir::DTensorType left = TypeOf(a), right = TypeOf(b);
    const bool is_wide = ir::StaticDim(ShapeOf(left)[1]) != 1;
    const ir::DTensorType type = is_wide ? left : right;
    if (is_wide && ir::StaticDim(ShapeOf(right)[1]) != 1 &&
        !ir::SameDim(ShapeOf(left)[1], ShapeOf(right)[1]))
      return ir::Expr();
    ir::Call call = ir::make::kMultiply(a, b).cast<ir::Call>();
    ir::SetType(call, type);
    return rows->Bind(ir::Var::Cast(a).name(), call);
  }

  // ---- collectives

  /*! \brief True if zeros can be put behind rows so that there are as many as others, or none need
   * be. */
  static bool CanPad(const ir::Expr& rows, const ir::Expr& to) {
    return ir::SameDim(rows, to) || (ir::StaticDim(rows) >= 0 && ir::StaticDim(to) >= 0);
  }

  /*! \brief A matrix with zeros behind its rows, so that there are `rows`. */
  ir::Expr Padded(EditableBinding* at, const ir::Expr& matrix, const ir::Expr& rows) {
    const ir::DTensorType type = TypeOf(matrix);
    const int64_t missing = ir::StaticDim(rows) - ir::StaticDim(ShapeOf(type)[0]);
    if (ir::SameDim(rows, ShapeOf(type)[0])) return matrix;
    ir::Call call = ir::make::kNnPad(matrix, ffi::Array<int64_t>{0, missing, 0, 0},
                                     ffi::String("constant"), 0.0)
                        .cast<ir::Call>();
    ir::SetType(call,
                ir::MakeDTensorType(ir::MakeTensorType({rows, ShapeOf(type)[1]}, type.tensor_ty()),
                                    type.device_mesh(), type.placement()));
    return editable_.InsertBefore(at, ir::Var::Cast(matrix).name(), call);
  }

  /*! \brief Axes along which tokens are sharded in `parts`, and not in `whole`; empty where these
   * are not those of the experts, behind all others along which they are. */
  static bool AreOfExperts(const ir::DTensorType& whole, const ir::DTensorType& parts, int dim,
                           const std::vector<int>& expert_axes) {
    const std::vector<int> a = DimsOf(whole), b = DimsOf(parts);
    if (a.size() != b.size()) return false;
    for (int axis = 0; axis < static_cast<int>(a.size()); ++axis) {
      const bool is_of_experts = Has(expert_axes, axis);
      if (is_of_experts ? (a[axis] >= 0 || b[axis] != dim) : a[axis] != b[axis]) return false;
      if (a[axis] == dim && axis > expert_axes.front()) return false;
    }
    return true;
  }

  /*! \brief The rows of a matrix (tokens, width) that a value is, its tokens in front. */
  static ir::Expr RowsOf(const ir::DTensorType& type, const PairDims& dims) {
    std::vector<ir::Expr> sizes;
    for (size_t d = 0; d < dims.size(); ++d)
      if (dims[d].has_tokens()) sizes.push_back(ShapeOf(type)[d]);
    return ir::Product(sizes);
  }

  /*! \brief The sum over devices that follows, by what of it is not zero. */
  void Scatter(EditableBinding* at, const WeightedSum& sum) {
    auto reshape = ir::Call::Cast(at->value);
    const ir::Expr placed = reshape.args()[0];
    auto call = ir::Call::Cast(editable_.DefinitionOf(placed)->value);
    const ir::Expr weights = call.args()[1];
    EditableBinding* last = at;
    std::vector<int> reduced;
    while (EditableBinding* next = editable_.OnlyUserOf(last->var)) {
      auto user = ir::Call::Cast(next->value);
      if (next->block != at->block || !user.defined() || !TypeOf(user).defined()) break;
      auto kind = dialect::DTensorCollective(user.op());
      const bool sums = kind && !dialect::ReduceAxes(user).empty() &&
                        dialect::ReductionOf(user) == mesh::Reduction::kSum;
      const bool cuts = kind == mesh::CollectiveKind::kSlice;
      const bool pads =
          ir::IsOp(user.op(), "relax.nn.pad") && IsPaddedBehind(user, RowDim(sum.of_result));
      if (!sums && !cuts && !pads) break;
      for (int axis : dialect::ReduceAxes(user)) reduced.push_back(axis);
      last = next;
    }
    const int row = RowDim(sum.of_result);
    for (int axis : sum.expert_axes)
      if (!Has(reduced, axis)) return;
    if (!AreOfExperts(TypeOf(at->var), TypeOf(last->var), row, sum.expert_axes)) return;
    std::vector<int> rest;
    for (int axis : reduced)
      if (!Has(sum.expert_axes, axis)) rest.push_back(axis);
    std::sort(rest.begin(), rest.end());
    const ir::Expr tokens = RowsOf(TypeOf(last->var), sum.of_result);
    if (!CanPad(ShapeOf(TypeOf(placed))[0], tokens)) return;
    const std::string name = last->var.name();
    ir::Expr moved = editable_.InsertBefore(
        last, name,
        dialect::MakeScatterRows(Padded(last, placed, tokens), Padded(last, weights, tokens),
                                 sum.expert_axes, sum.choices));
    if (!rest.empty()) {
      moved = editable_.InsertBefore(
          last, name,
          dialect::MakeCollective(mesh::CollectiveKind::kAllReduce, moved, TypeOf(moved), rest,
                                  mesh::Reduction::kSum));
    }
    const ffi::Array<ir::Expr> before = Operands(last);
    editable_.SetValue(last,
                       Reshaped(moved, ShapeOf(TypeOf(last->var)), DimsOf(TypeOf(last->var))));
    for (const ir::Expr& old : before) Drop(old);
  }

  /*! \brief True if zeros are put behind one dimension, and nowhere else. */
  static bool IsPaddedBehind(const ir::Call& call, int dim) {
    const auto widths = ir::attrs::kPadPadWidth(call.attrs()).cast<ffi::Array<int64_t>>();
    for (int64_t i = 0; i < static_cast<int64_t>(widths.size()); ++i)
      if (widths[i] < 0 || (widths[i] != 0 && i != 2 * dim + 1)) return false;
    return ir::attrs::kPadPadMode.Text(call.attrs()) == "constant" &&
           ir::attrs::kPadPadValue(call.attrs()).cast<double>() == 0;
  }

  /*! \brief The tokens that are gathered for a device's experts: those that have one. */
  void Gather(const SelectedTokens& tokens, const WeightedSum& sum, const ir::Expr& weights) {
    EditableBinding* definition = editable_.DefinitionOf(tokens.value);
    auto call = definition == nullptr ? ir::Call() : ir::Call::Cast(definition->value);
    if (!call.defined() || tokens.matrix->dropped || editable_.NumUses(tokens.value) != 1) return;
    const int row = RowDim(tokens.dims);
    ir::Expr gathered = tokens.value;
    if (ir::IsOp(call.op(), "relax.strided_slice")) {
      const auto axes = rules::IntegersOf(call.args()[1]),
                 begin = rules::IntegersOf(call.args()[2]);
      const bool is_first = axes && axes->size() == 1 && (*axes)[0] == row && begin &&
                            (*begin)[0] == 0 && call.args().size() <= 4;
      if (!is_first) return;
      gathered = call.args()[0];
      definition = editable_.DefinitionOf(gathered);
      call = definition == nullptr ? ir::Call() : ir::Call::Cast(definition->value);
      if (!call.defined() || editable_.NumUses(gathered) != 1) return;
    }
    if (dialect::DTensorCollective(call.op()) != mesh::CollectiveKind::kAllGather ||
        !TypeOf(call).defined() ||
        !AreOfExperts(TypeOf(gathered), TypeOf(call.args()[0]), row, sum.expert_axes))
      return;
    EditableBinding* at = tokens.matrix;
    const auto bind = [&](const ir::Expr& value) {
      return editable_.InsertBefore(at, at->var.name(), value);
    };
    const ir::Expr home = AsCube(call.args()[0], tokens.dims, sum.num_experts, bind);
    if (!home.defined() || !editable_.IsVisible(call.args()[0], at)) return;
    const ir::NodeArray<ir::Expr>& shape = ShapeOf(TypeOf(home));
    if (!CanPad(ShapeOf(TypeOf(weights))[0], shape[0])) return;
    std::vector<int> dims = DimsOf(TypeOf(home));
    for (int& dim : dims) dim = dim == 2 ? 1 : dim;
    const ir::Expr matrix = bind(Reshaped(home, {shape[0], shape[2]}, dims));
    ir::Expr rows = bind(dialect::MakeGatherRows(matrix, Padded(at, weights, shape[0]),
                                                 sum.expert_axes, sum.choices));
    const ir::DTensorType wanted = TypeOf(at->var);
    if (!ir::SameDim(shape[0], ShapeOf(wanted)[0])) {
      const auto integers = [](int64_t value) { return ir::MakeTuple({ir::MakeInt(value)}); };
      ir::Call cut =
          ir::make::kStridedSlice(rows, integers(0), integers(0),
                                  integers(ir::StaticDim(ShapeOf(wanted)[0])), integers(1), false)
              .cast<ir::Call>();
      ir::SetType(cut, ir::MakeDTensorType(
                           ir::MakeTensorType({ShapeOf(wanted)[0], shape[2]}, wanted.tensor_ty()),
                           wanted.device_mesh(), TypeOf(rows).placement()));
      rows = bind(cut);
    }
    const ffi::Array<ir::Expr> before = Operands(at);
    editable_.SetValue(at, Reshaped(rows, ShapeOf(wanted), DimsOf(wanted)));
    for (const ir::Expr& old : before) Drop(old);
  }

  EditableFunction& editable_;
  SlotMasks masks_;
  WeightedSums sums_;
  const bool is_offered_;
  Tally& tally_;
};

}  // namespace

void DispatchWeighted(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions)
    DispatchPairs(function.editable.get(), *program, tally).Run();
}

}  // namespace distir::optimize
