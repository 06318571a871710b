// Attention: query [b s h d], key [b t k d], value [b t k e], bias [b h s t], result [b s h e].
// With grouped queries the heads of the query are (head of the key, query of that head).
#include "rules/registry.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kCausalMask("relax.attrs.AttentionAttrs", "causal_mask");
const ir::AttrField kWindowSize("relax.attrs.AttentionAttrs", "window_size");

constexpr int kBatch = 0, kSequence = 1, kHeads = 2, kDepth = 3;  // of query, key, value, result
constexpr int kBiasHeads = 1, kBiasSequence = 2;
constexpr size_t kBiasOperand = 3;

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
  // A mask compares positions, which a shard of the queries does not know.
  const ir::Node& attrs = view.call.attrs();
  if (kCausalMask(attrs) == nullptr && kWindowSize(attrs) == nullptr) {
    int sequence = builder.Parallel(sizes[kSequence]);
    builder.Operand(0, kSequence, sequence);
    builder.Result(0, kSequence, sequence);
    if (has_bias &&
        SameSize(view.operands[0], kSequence, view.operands[kBiasOperand], kBiasSequence))
      builder.Operand(kBiasOperand, kBiasSequence, sequence);
  }
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
    {"batch, heads and groups of heads, sequence of the query unless masked by position, depth of "
     "the value",
     "", "sequence of the key, depth of query and key"},
    {{"relax.nn.attention", Attention}, {"relax.nn.attention_bias", Attention}});
const RuleTable kPacked("attention",
                        {"heads and groups of heads, depth of the value", "",
                         "sequences, depth of query and key"},
                        {{"relax.nn.attention_var_len", PackedAttention}});

}  // namespace

}  // namespace rules
}  // namespace distir
