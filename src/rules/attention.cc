// Attention: query [b s h d], key [b t k d], value [b t k e], bias [b h s t], result [b s h e].
// With grouped queries the heads of the query are (head of the key, query of that head).
#include "rules/registry.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kCausalMask("relax.attrs.AttentionAttrs", "causal_mask");
const ir::AttrField kWindowSize("relax.attrs.AttentionAttrs", "window_size");

constexpr int kBatch = 0, kSequence = 1, kHeads = 2, kDepth = 3;  // of query, key, value, result
constexpr int kBiasHeads = 1, kBiasQueries = 2, kBiasKeys = 3;
constexpr size_t kBiasOperand = 3;

/*! \brief Whether the sizes that its algorithm computes with are known. */
bool CanExpand(const OpView& view) {
  Sizes query = StaticSizes(view.operands[0]), key = StaticSizes(view.operands[1]);
  bool has_offset = kCausalMask(view.call.attrs()) != nullptr;
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
  if (kWindowSize(attrs) != nullptr) return;
  auto add = [&](FactorKind kind, size_t operand, int bias_dim) {
    const ir::TensorType& type = view.operands[operand];
    int sequence = builder->Add({StaticSizes(type)[kSequence], kind});
    builder->Operand(operand, kSequence, sequence);
    bool has_bias = view.operands.size() > kBiasOperand &&
                    SameSize(type, kSequence, view.operands[kBiasOperand], bias_dim);
    if (has_bias) builder->Operand(kBiasOperand, bias_dim, sequence);
    return sequence;
  };
  bool is_masked = kCausalMask(attrs) != nullptr;
  FactorKind looked_along = CanExpand(view) ? FactorKind::kSpecial : FactorKind::kReplicate;
  builder->Result(0, kSequence,
                  add(is_masked ? looked_along : FactorKind::kParallel, 0, kBiasQueries));
  builder->Operand(2, kSequence, add(looked_along, 1, kBiasKeys));
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

const RuleTable kAttention(
    "attention",
    {"batch, heads and groups of heads, sequence of the query, depth of the value", "",
     "depth of query and key; sequences with a window",
     "sequence of the key: maxima, sums and weighted values of the shards are reduced; of the "
     "query "
     "where it is masked: by its positions"},
    {{"relax.nn.attention", Attention}, {"relax.nn.attention_bias", Attention}});
const RuleTable kPacked("attention",
                        {"heads and groups of heads, depth of the value", "",
                         "sequences, depth of query and key"},
                        {{"relax.nn.attention_var_len", PackedAttention}});

}  // namespace

}  // namespace rules
}  // namespace distir
