// Attention of which keys are sharded, or queries that are masked by their positions: every device
// has the scores of its own keys; maxima, sums and weighted values of the shards are reduced.
#include <cmath>
#include <cstdlib>

#include "expand/algorithm.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tir_node.h"

namespace distir {
namespace expand {

namespace {

const ir::AttrField kScale("relax.attrs.AttentionAttrs", "scale");
const ir::AttrField kCausalMask("relax.attrs.AttentionAttrs", "causal_mask");

const ir::GlobalFunction kAdd("relax.op.add");
const ir::GlobalFunction kDivide("relax.op.divide");
const ir::GlobalFunction kExp("relax.op.exp");
const ir::GlobalFunction kLessEqual("relax.op.less_equal");
const ir::GlobalFunction kMatmul("relax.op.matmul");
const ir::GlobalFunction kMax("relax.op.max");
const ir::GlobalFunction kMultiply("relax.op.multiply");
const ir::GlobalFunction kPermute("relax.op.permute_dims");
const ir::GlobalFunction kSubtract("relax.op.subtract");
const ir::GlobalFunction kSum("relax.op.sum");
const ir::GlobalFunction kWhere("relax.op.where");

constexpr int kSequence = 1, kHeads = 2, kDepth = 3;  // of query, key, value, result
constexpr size_t kBiasOperand = 3;
constexpr DLDataType kFloat32{kDLFloat, 32, 1};
constexpr DLDataType kInt64{kDLInt, 64, 1};
// Exponentials of it are 0 in every type, differences of it are numbers.
constexpr double kMasked = -1e30;

const ffi::Array<ir::Expr>& ShapeOf(const ir::Expr& x) { return ir::ShapeOf(TensorTypeOf(x)); }

ir::Expr Permuted(const ir::Expr& x, const std::vector<int64_t>& order, Writer* w) {
  return w->Write(kPermute, x, ffi::Array<int64_t>(order.begin(), order.end()));
}

/*! \brief Heads of the query as (head of the key, query of that head). */
ir::Expr Grouped(const ir::Expr& x, int heads, const ir::Expr& groups, Writer* w) {
  ffi::Array<ir::Expr> shape;
  for (int d = 0; d < RankOf(x); ++d) {
    const ir::Expr& size = ShapeOf(x)[d];
    if (d != heads) {
      shape.push_back(size);
    } else if (ir::StaticDim(size) == 1) {
      shape.push_back(size);
      shape.push_back(size);
    } else {
      shape.push_back(groups);
      shape.push_back(ir::SameDim(size, groups)
                          ? ir::MakeInt(1)
                          : ir::MakeInt(ir::StaticDim(size) / ir::StaticDim(groups)));
    }
  }
  return w->Reshape(x, shape);
}

/*! \brief Whether a query sees a key, as [s t]; null where all are seen. */
ir::Expr Mask(const SpecialCall& call, Writer* w) {
  auto causal = kCausalMask(call.attrs()).as<ffi::String>();
  if (!causal) return ir::Expr();
  auto positions = [&](size_t operand) {
    int factor = call.rule.operands[operand][kSequence][0];
    return w->Positions(call.sharding.factors[factor], ShapeOf(call.arg(operand))[kSequence]);
  };
  ir::Expr rows = positions(0);
  if (*causal == "BottomRight") {
    int64_t queries = ir::StaticDim(ShapeOf(call.arg(0))[kSequence]);
    int64_t keys = ir::StaticDim(ShapeOf(call.arg(1))[kSequence]);
    double offset = static_cast<double>(std::abs(queries - keys));
    rows = w->Write(kAdd, rows, w->Scalar(offset, kInt64));
  }
  return w->Write(kLessEqual, positions(1), w->ExpandDims(rows, {1}));
}

/*! \brief Products of queries and keys, scaled and biased, as [b g r s t] of float32 at least. */
ir::Expr Scores(const SpecialCall& call, const ir::Expr& groups, Writer* w) {
  ir::Expr query = Permuted(Grouped(call.arg(0), kHeads, groups, w), {0, 2, 3, 1, 4}, w);
  ir::Expr key = w->ExpandDims(Permuted(call.arg(1), {0, 2, 3, 1}, w), {2});
  ir::Expr scores = w->Write(kMatmul, query, key, ffi::Any(nullptr));
  if (DtypeOf(scores).bits < 32) scores = w->Cast(scores, kFloat32);
  DLDataType dtype = DtypeOf(scores);
  auto depth = static_cast<double>(ir::StaticDim(ShapeOf(call.arg(0))[kDepth]));
  auto scale =
      ir::FloatImm::Cast(kScale(call.attrs()).as<ffi::ObjectRef>().value_or(ffi::ObjectRef()));
  scores = scale.defined() ? w->Write(kMultiply, scores, w->Scalar(scale.value(), dtype))
                           : w->Write(kDivide, scores, w->Scalar(std::sqrt(depth), dtype));
  if (call.call.args().size() <= kBiasOperand) return scores;
  constexpr int kBiasHeads = 1;
  return w->Write(kAdd, scores,
                  w->Cast(Grouped(call.arg(kBiasOperand), kBiasHeads, groups, w), dtype));
}

ir::Expr Attention(const SpecialCall& call, Writer* w) {
  const ir::Expr& groups = ShapeOf(call.arg(1))[kHeads];
  ir::Expr scores = Scores(call, groups, w), mask = Mask(call, w);
  DLDataType dtype = DtypeOf(scores);
  if (mask.defined()) scores = w->Write(kWhere, mask, scores, w->Scalar(kMasked, dtype));
  const std::vector<int> keys{4};
  ir::Expr powers = w->Write(kExp, w->Write(kSubtract, scores, w->Reduce(kMax, scores, keys)));
  ir::Expr value = w->ExpandDims(Permuted(call.arg(2), {0, 2, 1, 3}, w), {2});
  ir::Expr sums = w->Write(kMatmul, powers, w->Cast(value, dtype), ffi::Any(nullptr));
  ir::Expr means = w->Write(kDivide, sums, w->Reduce(kSum, powers, keys));
  ir::Expr result = Permuted(w->Cast(means, DtypeOf(call.call)), {0, 3, 1, 2, 4}, w);
  return w->Reshape(result, ShapeOf(call.call));
}

const AlgorithmTable kAttention({{"relax.nn.attention", Attention},
                                 {"relax.nn.attention_bias", Attention}});

}  // namespace

}  // namespace expand
}  // namespace distir
