// Attention: query [b s h d], key [b t k d], value [b t k e], bias [b h s t], result [b s h e].
// With grouped queries the heads of the query are (head of the key, query of that head).
// Attention of which keys are sharded, or queries that are masked by their positions: every device
// has the scores of its own keys; maxima, sums and weighted values of the shards are reduced.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tir_node.h"
#include "ops/family.h"
#include "support/dtypes.h"

namespace distir::ops {

namespace {

// ---- factor rules

constexpr int kBatch = 0, kSequence = 1, kHeads = 2, kDepth = 3;  // of query, key, value, result
constexpr int kBiasHeads = 1, kBiasQueries = 2, kBiasKeys = 3;
constexpr size_t kBiasOperand = 3;

/*! \brief True if the sizes that its algorithm computes with are known. */
bool CanDecompose(const OpView& view) {
  Sizes query = StaticSizes(view.operands[0]), key = StaticSizes(view.operands[1]);
  bool has_offset = ir::attrs::kAttentionCausalMask(view.call.attrs()) != nullptr;
  return query[kDepth] > 0 && query[kHeads] > 0 && key[kHeads] > 0 &&
         query[kHeads] % key[kHeads] == 0 &&
         (!has_offset || (query[kSequence] > 0 && key[kSequence] > 0)) &&
         SameSize(view.operands[1], kSequence, view.operands[2], kSequence);
}

/*! \brief Adds the factors of heads; none where key and value disagree on them. */
void AddHeads(const OpView& view, RuleBuilder* builder) {
  int64_t query = StaticSizes(view.operands[0])[kHeads];
  int64_t key = StaticSizes(view.operands[1])[kHeads];
  if (!SameSize(view.operands[1], kHeads, view.operands[2], kHeads)) return;
  bool is_grouped = !SameSize(view.operands[0], kHeads, view.operands[1], kHeads);
  if (is_grouped && (query < 0 || key <= 0 || query % key != 0)) return;
  bool has_bias = view.operands.size() > kBiasOperand &&
                  SameSize(view.operands[0], kHeads, view.operands[kBiasOperand], kBiasHeads);
  auto add = [&](int factor) {
    builder->Operand(0, kHeads, factor);
    builder->Result(0, kHeads, factor);
    if (has_bias) builder->Operand(kBiasOperand, kBiasHeads, factor);
  };
  int head = builder->Parallel(key);
  add(head);
  builder->Operand(1, kHeads, head);
  builder->Operand(2, kHeads, head);
  if (is_grouped) add(builder->Parallel(query / key));
}

// Keys are softened together. A mask compares positions, which the operator on a shard does not
// know.
void AddSequences(const OpView& view, RuleBuilder* builder) {
  const ir::Node& attrs = view.call.attrs();
  if (ir::attrs::kAttentionWindowSize(attrs) != nullptr) return;
  auto add = [&](const FactorKind& kind, size_t operand, int bias_dim) {
    const ir::TensorType& type = view.operands[operand];
    int sequence = builder->Add({StaticSizes(type)[kSequence], kind});
    builder->Operand(operand, kSequence, sequence);
    bool has_bias = view.operands.size() > kBiasOperand &&
                    SameSize(type, kSequence, view.operands[kBiasOperand], bias_dim);
    if (has_bias) builder->Operand(kBiasOperand, bias_dim, sequence);
    return sequence;
  };
  bool is_masked = ir::attrs::kAttentionCausalMask(attrs) != nullptr;
  const FactorKind keys = DecomposedIf(CanDecompose(view));
  const FactorKind queries = is_masked ? keys : ParallelFactor();
  builder->Result(0, kSequence, add(queries, 0, kBiasQueries));
  builder->Operand(2, kSequence, add(keys, 1, kBiasKeys));
}

FactorRule Attention(const OpView& view) {
  for (const ir::TensorType& operand : view.operands) {
    if (ShardableRank(operand) != 4) return ReplicateAll(view);
  }
  RuleBuilder builder(view);
  bool has_bias = view.operands.size() > kBiasOperand;
  Sizes sizes = StaticSizes(view.operands[0]);
  int batch = builder.Parallel(sizes[kBatch]);
  for (size_t i = 0; i < 3; ++i) builder.Operand(i, kBatch, batch);
  builder.Result(0, kBatch, batch);
  if (has_bias && SameSize(view.operands[0], kBatch, view.operands[kBiasOperand], kBatch))
    builder.Operand(kBiasOperand, kBatch, batch);
  AddHeads(view, &builder);
  AddSequences(view, &builder);
  int depth = builder.Parallel(StaticSizes(view.operands[2])[kDepth]);
  builder.Operand(2, kDepth, depth);
  builder.Result(0, kDepth, depth);
  FactorRule rule = builder.Finish();
  rule.is_pass_through = false;
  return rule;
}

// Sequences of several lengths lie one behind the other, so only heads and depth can be shared out.
FactorRule PackedAttention(const OpView& view) {
  for (size_t i = 0; i < 3; ++i) {
    if (ShardableRank(view.operands[i]) != 4) return ReplicateAll(view);
  }
  RuleBuilder builder(view);
  AddHeads({view.call, {view.operands.begin(), view.operands.begin() + 3}, view.results}, &builder);
  int depth = builder.Parallel(StaticSizes(view.operands[2])[kDepth]);
  builder.Operand(2, kDepth, depth);
  builder.Result(0, kDepth, depth);
  FactorRule rule = builder.Finish();
  rule.is_pass_through = false;
  return rule;
}

// The products of queries and keys, and of these weights and the values.
double CountOperations(const OpView& view) {
  Sizes query = StaticSizes(view.operands[0]), key = StaticSizes(view.operands[1]);
  Sizes value = StaticSizes(view.operands[2]);
  double operations = 2;
  for (int64_t size : {query[kBatch], query[kSequence], query[kHeads], key[kSequence],
                       query[kDepth] < 0 || value[kDepth] < 0 ? -1 : query[kDepth] + value[kDepth]})
    operations *= static_cast<double>(std::max<int64_t>(size, 0));
  return operations;
}

// ---- decompositions

// Exponentials of it are 0 in every type, differences of it are numbers.
constexpr double kMasked = -1e30;

const ir::NodeArray<ir::Expr>& ShapeOf(const ir::Expr& x) { return ir::ShapeOf(TensorTypeOf(x)); }

ir::Expr Permuted(const ir::Expr& x, const std::vector<int64_t>& order, Writer* w) {
  return w->Write(ir::make::kPermuteDims, x, ffi::Array<int64_t>(order.begin(), order.end()));
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

/*! \brief True if a query sees a key, as [s t]; null where all are seen. */
ir::Expr Mask(const DecomposedCall& call, Writer* w) {
  auto causal = ir::attrs::kAttentionCausalMask(call.attrs()).as<ffi::String>();
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
    rows = w->Write(ir::make::kAdd, rows, w->Scalar(offset, kInt64));
  }
  return w->Write(ir::make::kLessEqual, positions(1), w->ExpandDims(rows, {1}));
}

/*! \brief Products of queries and keys, scaled and biased, as [b g r s t] of float32 at least. */
ir::Expr Scores(const DecomposedCall& call, const ir::Expr& groups, Writer* w) {
  ir::Expr query = Permuted(Grouped(call.arg(0), kHeads, groups, w), {0, 2, 3, 1, 4}, w);
  ir::Expr key = w->ExpandDims(Permuted(call.arg(1), {0, 2, 3, 1}, w), {2});
  ir::Expr scores = w->Write(ir::make::kMatmul, query, key, ffi::Any(nullptr));
  if (DtypeOf(scores).bits < 32) scores = w->Cast(scores, kFloat32);
  DLDataType dtype = DtypeOf(scores);
  auto depth = static_cast<double>(ir::StaticDim(ShapeOf(call.arg(0))[kDepth]));
  auto scale = ir::FloatImm::Cast(
      ir::attrs::kAttentionScale(call.attrs()).as<ffi::ObjectRef>().value_or(ffi::ObjectRef()));
  scores = scale.defined()
               ? w->Write(ir::make::kMultiply, scores, w->Scalar(scale.value(), dtype))
               : w->Write(ir::make::kDivide, scores, w->Scalar(std::sqrt(depth), dtype));
  if (call.call.args().size() <= kBiasOperand) return scores;
  constexpr int kBiasHeads = 1;
  return w->Write(ir::make::kAdd, scores,
                  w->Cast(Grouped(call.arg(kBiasOperand), kBiasHeads, groups, w), dtype));
}

ir::Expr DecomposeAttention(const DecomposedCall& call, Writer* w) {
  const ir::Expr& groups = ShapeOf(call.arg(1))[kHeads];
  ir::Expr scores = Scores(call, groups, w), mask = Mask(call, w);
  DLDataType dtype = DtypeOf(scores);
  if (mask.defined()) scores = w->Write(ir::make::kWhere, mask, scores, w->Scalar(kMasked, dtype));
  const std::vector<int> keys{4};
  ir::Expr powers = w->Write(ir::make::kExp, w->Write(ir::make::kSubtract, scores,
                                                      w->Reduce(ir::make::kMax, scores, keys)));
  ir::Expr value = w->ExpandDims(Permuted(call.arg(2), {0, 2, 1, 3}, w), {2});
  ir::Expr sums = w->Write(ir::make::kMatmul, powers, w->Cast(value, dtype), ffi::Any(nullptr));
  ir::Expr means = w->Write(ir::make::kDivide, sums, w->Reduce(ir::make::kSum, powers, keys));
  ir::Expr result = Permuted(w->Cast(means, DtypeOf(call.call)), {0, 3, 1, 2, 4}, w);
  return w->Reshape(result, ShapeOf(call.call));
}

// ---- the records

const Operators kAttention(
    "attention",
    {"batch, heads and groups of heads, sequence of the query, depth of the value", "",
     "depth of query and key; sequences with a window",
     "sequence of the key: maxima, sums and weighted values of the shards are reduced; of the "
     "query "
     "where it is masked: by its positions"},
    {Operator("relax.nn.attention", Attention)
         .Adds(Accumulation::kSums)
         .Operations(CountOperations)
         .Decompose(DecomposeAttention)
         .Pad(Padding::kDecomposed)
         .PadGrains(),
     Operator("relax.nn.attention_bias", Attention)
         .Adds(Accumulation::kSums)
         .Operations(CountOperations)
         .Decompose(DecomposeAttention)
         .Pad(Padding::kDecomposed)
         .PadGrains()});
const Operators kPacked(
    "attention",
    {"heads and groups of heads, depth of the value", "", "sequences, depth of query and key"},
    {Operator("relax.nn.attention_var_len", PackedAttention).Pad(Padding::kParallel).PadGrains()});

}  // namespace

}  // namespace distir::ops
