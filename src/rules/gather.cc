// Operators that read a tensor at positions that another tensor states. The positions are parallel;
// shards of what is looked up add up what each of them has.
#include "rules/axes.h"
#include "rules/registry.h"
#include "rules/special.h"

namespace distir {
namespace rules {

namespace {

const ir::AttrField kGatherElementsAxis("relax.attrs.GatherElementsAttrs", "axis");
const ir::AttrField kGatherNdBatch("relax.attrs.GatherNDAttrs", "batch_dims");
const ir::AttrField kReverseSequenceAxis("relax.attrs.ReverseSequenceAttrs", "seq_axis");
const ir::AttrField kReverseSequenceBatch("relax.attrs.ReverseSequenceAttrs", "batch_axis");

// result[.., i, ..] = data[.., indices[.., i, ..], ..]; shards of the data along the axis add up
// what each of them has. Indices may be shorter than the data along other dimensions; these are
// then aligned at their beginning, so shards would not match.
FactorRule GatherElements(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[1]);
  int rank = static_cast<int>(sizes.size());
  int axis = NormalizeAxis(kGatherElementsAxis.Int(view.call.attrs(), 0), rank);
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == axis) builder.Operand(0, d, SpecialIfKnown(view.operands[0], d, &builder));
    bool is_aligned = SameSize(view.operands[0], d, view.operands[1], d);
    if (d != axis && !is_aligned) continue;
    int factor = builder.Parallel(sizes[d]);
    if (d != axis) builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

/*! \brief The number of leading dimensions that the last dimension of `indices` looks up; -1 where
 * it is not known. */
int LookedUp(const ir::TensorType& indices) {
  Sizes sizes = StaticSizes(indices);
  return sizes.empty() ? -1 : static_cast<int>(sizes.back());
}

/*! \brief Gives dimensions that several positions look up together a factor each. */
void AddLookedUp(const OpView& view, int begin, int num, RuleBuilder* builder) {
  Sizes sizes = StaticSizes(view.operands[0]);
  for (int d = begin; d < begin + num; ++d) {
    if (sizes[d] <= 0) return;
  }
  for (int d = begin; d < begin + num; ++d)
    builder->Operand(0, d, SpecialIfKnown(view.operands[0], d, builder));
}

// result[b.., i.., t..] = data[b.., indices[b.., i.., :].., t..]
FactorRule GatherNd(const OpView& view) {
  int looked_up = LookedUp(view.operands[1]);
  if (looked_up < 0) return ReplicateAll(view);
  int batch = static_cast<int>(kGatherNdBatch.Int(view.call.attrs(), 0));
  Sizes data = StaticSizes(view.operands[0]);
  Sizes indices = StaticSizes(view.operands[1]);
  RuleBuilder builder(view);
  int result_dim = 0;
  for (int d = 0; d + 1 < static_cast<int>(indices.size()); ++d, ++result_dim) {
    if (d < batch && !SameSize(view.operands[0], d, view.operands[1], d)) continue;
    int factor = builder.Parallel(indices[d]);
    if (d < batch) builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
    builder.Result(0, result_dim, factor);
  }
  AddLookedUp(view, batch, looked_up, &builder);
  for (int d = batch + looked_up; d < static_cast<int>(data.size()); ++d) {
    int factor = builder.Parallel(data[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, result_dim++, factor);
  }
  return builder.Finish();
}

// result[i.., t..] = data[index[i..].., t..], the indices broadcast among each other.
FactorRule IndexTensor(const OpView& view) {
  int num_indices = static_cast<int>(view.operands.size()) - 1;
  Sizes data = StaticSizes(view.operands[0]);
  Sizes result = StaticSizes(view.results[0]);
  int tail = static_cast<int>(data.size()) - num_indices;
  int positions = static_cast<int>(result.size()) - tail;
  if (tail < 0 || positions < 0) return ReplicateAll(view);
  RuleBuilder builder(view);
  for (int d = 0; d < positions; ++d) {
    int factor = builder.Parallel(result[d]);
    builder.Result(0, d, factor);
    for (int i = 1; i <= num_indices; ++i) {
      int dim = d - (positions - ShardableRank(view.operands[i]));
      if (dim >= 0 && SameSize(view.operands[i], dim, view.results[0], d))
        builder.Operand(i, dim, factor);
    }
  }
  AddLookedUp(view, 0, num_indices, &builder);
  for (int d = 0; d < tail; ++d) {
    int factor = builder.Parallel(data[num_indices + d]);
    builder.Operand(0, num_indices + d, factor);
    builder.Result(0, positions + d, factor);
  }
  return builder.Finish();
}

FactorRule ReverseSequence(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  const ir::Node& attrs = view.call.attrs();
  int sequence = NormalizeAxis(kReverseSequenceAxis.Int(attrs, 1), rank);
  int batch = NormalizeAxis(kReverseSequenceBatch.Int(attrs, 0), rank);
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == sequence) continue;
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
    if (d == batch) builder.Operand(1, 0, factor);
  }
  return builder.Finish();
}

// The position among all boundaries is the sum of those among the boundaries of each shard.
FactorRule Bucketize(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  RuleBuilder builder(view);
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Result(0, d, factor);
  }
  int64_t boundaries = StaticSizes(view.operands[1])[0];
  builder.Operand(1, 0, builder.Reduce(boundaries, mesh::Reduction::kSum));
  return builder.Finish();
}

// probabilities [. .], samples [n .], rows [n .], result [n .]: a sample names its row.
FactorRule Multinomial(const OpView& view) {
  RuleBuilder builder(view);
  int sample = builder.Parallel(StaticSizes(view.results[0])[0]);
  builder.Operand(1, 0, sample);
  builder.Operand(2, 0, sample);
  builder.Result(0, 0, sample);
  return builder.Finish();
}

const RuleTable kGatherElements(
    "gather",
    {"positions, other dimensions", "", "",
     "the dimension looked up: every shard gives its elements or 0, which are summed"},
    {{"relax.gather_elements", GatherElements}});
const RuleTable kGather(
    "gather",
    {"positions, other dimensions", "", "",
     "what is looked up, by several positions at once: every shard gives its elements or 0, which "
     "are summed"},
    {{"relax.gather_nd", GatherNd}, {"relax.index_tensor", IndexTensor}});
const RuleTable kReverse("gather", {"batch, others", "", "sequence"},
                         {{"relax.reverse_sequence", ReverseSequence}});
const RuleTable kBucketize("gather", {"all of the input", "boundaries: sum"},
                           {{"relax.bucketize", Bucketize}});
const RuleTable kMultinomial("gather", {"samples", "", "probabilities"},
                             {{"relax.multinomial_from_uniform", Multinomial}});

}  // namespace

}  // namespace rules
}  // namespace distir
