// Values that follow from positions in the whole tensor, or from nothing: every device makes those
// of its shard.
#include "expand/algorithm.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tir_node.h"
#include "rules/axes.h"

namespace distir {
namespace expand {

namespace {

const ir::AttrField kOneHotAxis("relax.attrs.OneHotAttrs", "axis");

const ir::GlobalFunction kAdd("relax.op.add");
const ir::GlobalFunction kBroadcastTo("relax.op.broadcast_to");
const ir::GlobalFunction kCos("relax.op.cos");
const ir::GlobalFunction kEqual("relax.op.equal");
const ir::GlobalFunction kGreaterEqual("relax.op.greater_equal");
const ir::GlobalFunction kLessEqual("relax.op.less_equal");
const ir::GlobalFunction kMultiply("relax.op.multiply");
const ir::GlobalFunction kSubtract("relax.op.subtract");
const ir::GlobalFunction kWhere("relax.op.where");

constexpr double kTwoPi = 6.283185307179586;
constexpr DLDataType kBool{kDLBool, 8, 1};
constexpr DLDataType kInt64{kDLInt, 64, 1};
constexpr DLDataType kFloat64{kDLFloat, 64, 1};

int64_t IntOf(const ir::Expr& number) { return ir::IntImm::Cast(number).value(); }

/*! \brief A number of the call as a scalar of this type. */
ir::Expr ScalarOf(const ir::Expr& number, DLDataType dtype, Writer* w) {
  return w->Scalar(ir::IntImm::Is(number) ? static_cast<double>(IntOf(number))
                                          : ir::FloatImm::Cast(number).value(),
                   dtype);
}

/*! \brief Positions along a dimension of the result, which broadcast to it. */
ir::Expr PositionsAlong(const SpecialCall& call, int dim, Writer* w) {
  int rank = static_cast<int>(call.sharding.results[0].dims.size());
  const ir::Expr& size = ir::ShapeOf(TensorTypeOf(call.call))[dim];
  ir::Expr positions = w->Positions(call.sharding.results[0].dims[dim], size);
  std::vector<int> behind;
  for (int d = dim + 1; d < rank; ++d) behind.push_back(d - dim);
  return w->ExpandDims(positions, behind);
}

ir::Expr Arange(const SpecialCall& call, Writer* w) {
  const ir::Expr &start = call.arg(0), &step = call.arg(2);
  bool is_integer = ir::IntImm::Is(start) && ir::IntImm::Is(call.arg(1)) && ir::IntImm::Is(step);
  DLDataType within = is_integer ? kInt64 : kFloat64;
  ir::Expr positions = w->Cast(PositionsAlong(call, 0, w), within);
  ir::Expr steps = w->Write(kMultiply, positions, ScalarOf(step, within, w));
  return w->Cast(w->Write(kAdd, steps, ScalarOf(start, within, w)), DtypeOf(call.call));
}

// alpha - beta * cos(2 pi n / (N - 1)); a periodic window is one of another element more, without
// its last one.
ir::Expr HammingWindow(const SpecialCall& call, Writer* w) {
  int64_t size = IntOf(call.arg(0)) + (IntOf(call.arg(1)) != 0 ? 1 : 0);
  DLDataType dtype = DtypeOf(call.call);
  ir::Expr positions = w->Cast(PositionsAlong(call, 0, w), dtype);
  double turn = size > 1 ? kTwoPi / static_cast<double>(size - 1) : 0;
  ir::Expr wave = w->Write(kCos, w->Write(kMultiply, positions, w->Scalar(turn, dtype)));
  ir::Expr scaled = w->Write(kMultiply, wave, ScalarOf(call.arg(3), dtype, w));
  return w->Write(kSubtract, ScalarOf(call.arg(2), dtype, w), scaled);
}

/*! \brief The positions of the last dimension at which each row has the diagonal `k`, and those of
 * the last dimension. */
std::pair<ir::Expr, ir::Expr> Diagonal(const SpecialCall& call, const ir::Expr& k, Writer* w) {
  int rank = static_cast<int>(call.sharding.results[0].dims.size());
  ir::Expr rows = PositionsAlong(call, rank - 2, w);
  return {w->Write(kAdd, rows, ScalarOf(k, kInt64, w)), PositionsAlong(call, rank - 1, w)};
}

template <int argument>
ir::Expr Eye(const SpecialCall& call, Writer* w) {
  auto [diagonal, columns] = Diagonal(call, call.arg(argument), w);
  return w->Cast(w->Write(kEqual, diagonal, columns), DtypeOf(call.call));
}

template <const ir::GlobalFunction* keeps>
ir::Expr Triangle(const SpecialCall& call, Writer* w) {
  auto [diagonal, columns] = Diagonal(call, call.arg(1), w);
  ir::Expr x = call.arg(0);
  return w->Write(kWhere, w->Write(*keeps, columns, diagonal), x, w->Scalar(0, DtypeOf(x)));
}

ir::Expr OneHot(const SpecialCall& call, Writer* w) {
  ir::Expr indices = call.arg(0);
  int axis = rules::NormalizeAxis(kOneHotAxis.Int(call.attrs(), -1), RankOf(indices) + 1);
  ir::Expr classes = w->Cast(PositionsAlong(call, axis, w), DtypeOf(indices));
  ir::Expr is_on = w->Write(kEqual, w->ExpandDims(indices, {axis}), classes);
  DLDataType dtype = DtypeOf(call.call);
  return w->Write(kWhere, is_on, ScalarOf(call.arg(1), dtype, w), ScalarOf(call.arg(2), dtype, w));
}

// Along every dimension that is made, the value is copied to each shard, which is a dimension of
// its own, and there to all positions.
ir::Expr Broadcast(const SpecialCall& call, const ir::Expr& value, Writer* w) {
  const mesh::Sharding& sharding = call.sharding.results[0];
  const ffi::Array<ir::Expr>& whole = ir::ShapeOf(TensorTypeOf(call.call));
  int rank = static_cast<int>(whole.size()), operand_rank = RankOf(value);
  ffi::Array<ir::Expr> split;
  std::vector<int> shards, new_dims;  // dimensions of shards; of these, within what `value` has
  for (int d = 0; d < rank; ++d) {
    const rules::FactorList& factors = call.rule.results[0][d];
    int own = d - (rank - operand_rank);  // the operand's dimension, if there is one
    bool has_factor = own >= 0 && !call.rule.operands.empty() &&
                      !call.rule.operands[0][own].empty() &&
                      call.rule.operands[0][own][0] == factors[0];
    if (has_factor || sharding.dims[d].empty()) {
      split.push_back(whole[d]);
      continue;
    }
    int64_t count = mesh::NumShards(sharding.dims[d]);
    shards.push_back(static_cast<int>(split.size()));
    if (own >= 0) new_dims.push_back(own + static_cast<int>(new_dims.size()));
    split.push_back(ir::MakeInt(count));
    split.push_back(ir::FloorDivide(whole[d], count));
  }
  ir::Expr made = w->ExpandDims(value, new_dims);
  size_t next = 0;
  for (int d = 0; d < rank && next < shards.size(); ++d) {
    if (shards[next] != d + static_cast<int>(next)) continue;
    ir::Expr index = w->ShardIndex(sharding.dims[d], shards[next], static_cast<int>(split.size()));
    made = w->Write(kWhere, w->Cast(index, kBool), made, made);
    ++next;
  }
  return w->Reshape(w->Write(kBroadcastTo, made, ir::Expr(ir::MakeShape(split))), whole);
}

template <int value>
ir::Expr Filled(const SpecialCall& call, Writer* w) {
  return Broadcast(call, w->Scalar(value, DtypeOf(call.call)), w);
}

ir::Expr Full(const SpecialCall& call, Writer* w) {
  return Broadcast(call, w->Cast(call.arg(1), DtypeOf(call.call)), w);
}

ir::Expr BroadcastTo(const SpecialCall& call, Writer* w) { return Broadcast(call, call.arg(0), w); }

const AlgorithmTable kPositions({{"relax.arange", Arange},
                                 {"relax.broadcast_to", BroadcastTo},
                                 {"relax.eye", Eye<2>},
                                 {"relax.eye_like", Eye<1>},
                                 {"relax.full", Full},
                                 {"relax.hamming_window", HammingWindow},
                                 {"relax.one_hot", OneHot},
                                 {"relax.ones", Filled<1>},
                                 {"relax.tril", Triangle<&kLessEqual>},
                                 {"relax.triu", Triangle<&kGreaterEqual>},
                                 {"relax.zeros", Filled<0>}});

}  // namespace

}  // namespace expand
}  // namespace distir
