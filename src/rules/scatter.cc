// Operators that write at positions that another tensor states. What is written to may be sharded:
// each shard skips what lies in others. So may what is written, where the order does not count and
// reducing all of the data sends less than gathering what is written.
#include <algorithm>
#include <string>

#include "rules/axes.h"
#include "rules/projection.h"
#include "rules/registry.h"
#include "rules/scatter_fields.h"

namespace distir {
namespace rules {

namespace {

bool AreKnown(const Sizes& sizes, int begin, int num) {
  for (int d = begin; d < begin + num; ++d) {
    if (sizes[d] <= 0) return false;
  }
  return true;
}

/*! \brief Gives dimensions that are written to by position a factor each. */
void AddWritten(const OpView& view, int begin, int num, RuleBuilder* builder) {
  Sizes sizes = StaticSizes(view.results[0]);
  if (!AreKnown(sizes, begin, num)) return;
  for (int d = begin; d < begin + num; ++d) {
    int factor = builder->Special(sizes[d]);
    builder->Operand(0, d, factor);
    builder->Result(0, d, factor);
  }
}

/*! \brief Whether shards of the updates may be written apart and reduced: an all-reduce of the data
 * sends it twice. */
bool MayReduce(const OpView& view, const std::string& mode) {
  if (mode != "add" && mode != "mul" && mode != "min" && mode != "max") return false;
  const ir::TensorType &data = view.operands[0], &updates = view.operands.back();
  if (!data.dtype().defined() || data.dtype().dtype().code == kDLBool) return false;
  const Sizes written = StaticSizes(data), read = StaticSizes(updates);
  return AreKnown(written, 0, static_cast<int>(written.size())) &&
         AreKnown(read, 0, static_cast<int>(read.size())) &&
         2 * NumElements(written) <= NumElements(read);
}

FactorRule ScatterElements(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]), updates = StaticSizes(view.operands[2]);
  int rank = static_cast<int>(sizes.size());
  int axis = NormalizeAxis(kScatterElementsAxis.Int(view.call.attrs(), 0), rank);
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == axis) {
      AddWritten(view, axis, 1, &builder);
      if (!MayReduce(view, kScatterElementsMode.Text(view.call.attrs()))) continue;
      int places = builder.Special(updates[d]);
      builder.Operand(1, d, places);
      builder.Operand(2, d, places);
      continue;
    }
    // Shorter indices are aligned with the data's beginning, so that shards would not match.
    if (!SameSize(view.operands[0], d, view.operands[1], d) ||
        !SameSize(view.operands[0], d, view.operands[2], d))
      continue;
    int factor = builder.Parallel(sizes[d]);
    for (size_t i = 0; i < 3; ++i) builder.Operand(i, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

// result = data, then result[indices[i.., :].., t..] = updates[i.., t..]
FactorRule ScatterNd(const OpView& view) {
  Sizes indices = StaticSizes(view.operands[1]);
  if (indices.empty() || indices.back() < 0) return ReplicateAll(view);
  int num = static_cast<int>(indices.back());
  Sizes data = StaticSizes(view.operands[0]);
  int update_dim = static_cast<int>(indices.size()) - 1;
  RuleBuilder builder(view);
  AddWritten(view, 0, num, &builder);
  if (MayReduce(view, kScatterNdMode.Text(view.call.attrs()))) {
    for (int d = 0; d < update_dim; ++d) {
      int places = builder.Special(indices[d]);
      builder.Operand(1, d, places);
      builder.Operand(2, d, places);
    }
  }
  for (int d = num; d < static_cast<int>(data.size()); ++d) {
    int factor = builder.Parallel(data[d]);
    builder.Operand(0, d, factor);
    builder.Operand(2, update_dim++, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

// result = data, then result[index[i..]..] = values[i..], the indices broadcast among each other;
// one for each dimension of the data.
FactorRule IndexPut(const OpView& view) {
  const int num = static_cast<int>(view.operands.size()) - 2;
  const size_t values = view.operands.size() - 1;
  if (ShardableRank(view.operands[0]) != num) return ReplicateAll(view);
  int rank = 0;
  for (int i = 1; i <= num; ++i) {
    for (int64_t size : StaticSizes(view.operands[i])) {
      if (size < 0) return ReplicateAll(view);
    }
    rank = std::max(rank, ShardableRank(view.operands[i]));
  }
  Sizes places(rank, 1);  // of all indices broadcast
  for (int i = 1; i <= num; ++i) {
    Sizes sizes = StaticSizes(view.operands[i]);
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] != 1) places[rank - sizes.size() + d] = sizes[d];
    }
  }
  const Sizes stated = StaticSizes(view.operands[values]);
  if (NumElements(stated) != NumElements(places)) return ReplicateAll(view);
  RuleBuilder builder(view);
  AddWritten(view, 0, num, &builder);
  const char* mode = kIndexPutAccumulate.Bool(view.call.attrs()) ? "add" : "update";
  if (static_cast<int>(stated.size()) != rank || !MayReduce(view, mode)) return builder.Finish();
  for (int d = 0; d < rank; ++d) {
    int factor = builder.Special(places[d]);
    builder.Operand(values, d, factor);
    for (int i = 1; i <= num; ++i) {
      int dim = d - (rank - ShardableRank(view.operands[i]));
      if (dim >= 0 && StaticSizes(view.operands[i])[dim] == places[d])
        builder.Operand(i, dim, factor);
    }
  }
  return builder.Finish();
}

// Operands: data, then what is written to a slice of it, which is needed whole along the slice.
FactorRule SliceScatter(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[0]);
  int rank = static_cast<int>(sizes.size());
  int axis = NormalizeAxis(kSliceScatterAxis.Int(view.call.attrs(), 0), rank);
  const ffi::Array<ir::Expr>& args = view.call.args();  // data, source, start, end, step
  bool is_known = std::all_of(args.begin() + 2, args.end(), ir::IntImm::Is) &&
                  ir::IntImm::Cast(args[4]).value() > 0 && StaticSizes(view.operands[1])[axis] > 0;
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == axis) {
      if (is_known) AddWritten(view, axis, 1, &builder);
      continue;
    }
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

// The gradient of a lookup adds up what was looked up at each position: shards of the indices give
// parts of that sum. Operands: gradient of the result, table, indices.
FactorRule TakeBackward(const OpView& view) {
  Sizes sizes = StaticSizes(view.operands[1]);
  int rank = static_cast<int>(sizes.size());
  auto axes = ReadAxes(kTakeAxis(view.call.attrs()), rank);
  if (!axes || ShardableRank(view.operands[2]) != 1) return ReplicateAll(view);
  int axis = (*axes)[0];
  RuleBuilder builder(view);
  for (int d = 0; d < rank; ++d) {
    if (d == axis) {
      int indices = builder.Reduce(StaticSizes(view.operands[2])[0], mesh::Reduction::kSum);
      builder.Operand(0, d, indices);
      builder.Operand(2, 0, indices);
      if (sizes[d] <= 0) continue;
      int rows = builder.Special(sizes[d]);
      builder.Operand(1, d, rows);
      builder.Result(0, d, rows);
      continue;
    }
    int factor = builder.Parallel(sizes[d]);
    builder.Operand(0, d, factor);
    builder.Operand(1, d, factor);
    builder.Result(0, d, factor);
  }
  return builder.Finish();
}

const RuleTable kScatter(
    "scatter",
    {"dimensions not written to by position", "",
     "positions of what is written in order, or of less than is written to",
     "dimensions written to: every shard skips what lies in others; positions of much that is "
     "accumulated: what shards come to is reduced"},
    {{"relax.index_put", IndexPut},
     {"relax.scatter_elements", ScatterElements},
     {"relax.scatter_nd", ScatterNd}});
const RuleTable kSliceScatter("indexing",
                              {"dimensions that are not cut", "", "the slice that is written",
                               "the dimension written to: every shard writes what lies in it"},
                              {{"relax.slice_scatter", SliceScatter}});
const RuleTable kTakeBackward("gather",
                              {"others", "positions: sum", "",
                               "the dimension looked up: every shard adds what lies in it"},
                              {{"relax.grad.take_backward", TakeBackward}});

}  // namespace

}  // namespace rules
}  // namespace distir
