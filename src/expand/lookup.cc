// Lookups in a table that is sharded along the dimension looked up: every device looks the position
// within a shard up in its own, keeps what is its own, and the sum of all is the result.
#include "expand/lookup.h"

#include <algorithm>

#include "expand/algorithm.h"
#include "expand/blocks.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/axes.h"

namespace distir {
namespace expand {

namespace {

const ir::AttrField kTakeAxis("relax.attrs.TakeAttrs", "axis");
const ir::AttrField kTakeMode("relax.attrs.TakeAttrs", "mode");
const ir::AttrField kGatherElementsAxis("relax.attrs.GatherElementsAttrs", "axis");
const ir::AttrField kGatherNdBatch("relax.attrs.GatherNDAttrs", "batch_dims");

const ir::GlobalFunction kClip("relax.op.clip");
const ir::GlobalFunction kEqual("relax.op.equal");
const ir::GlobalFunction kFloorDivide("relax.op.floor_divide");
const ir::GlobalFunction kFloorMod("relax.op.floor_mod");
const ir::GlobalFunction kGatherElements("relax.op.gather_elements");
const ir::GlobalFunction kGatherNd("relax.op.gather_nd");
const ir::GlobalFunction kSum("relax.op.sum");
const ir::GlobalFunction kTake("relax.op.take");
const ir::GlobalFunction kWhere("relax.op.where");

/*! \brief What each shard of a table is asked for. */
struct Shards {
  ir::Expr table;  // with the dimension (n,) split into (shards, n / shards)
  int64_t length;  // n / shards
};

Shards Split(const ir::Expr& table, const mesh::AxisList& axes, int axis, Writer* w) {
  int64_t shards = mesh::NumShards(axes);
  int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(table))[axis]);
  return {w->Reshape(table, SplitShape(table, axis, shards)), size / shards};
}

/*! \brief The values where `is_own`, summed over the shards, which are dimensions `dims`. */
ir::Expr SumOfOwn(const ir::Expr& is_own, const ir::Expr& values, const std::vector<int>& dims,
                  Writer* w) {
  ir::Expr own = w->Write(kWhere, is_own, values, w->Scalar(0, DtypeOf(values)));
  return w->Reduce(kSum, own, dims, /*keepdims=*/false);
}

/*! \brief data[b.., p[b.., i..].., t..] for positions p, one per dimension looked up; `batch` is
 * the number of dimensions b. A position that is another shard's looks up place 0. */
ir::Expr LookUpTogether(const ir::Expr& data, const std::vector<ir::Expr>& positions, int batch,
                        Writer* w) {
  const int num = static_cast<int>(positions.size());
  const Blocks blocks(data, batch, num, w);
  auto [is_own, place] = blocks.Find(positions, w);
  place = w->Write(kWhere, is_own, place, w->Scalar(0, DtypeOf(place)));
  ir::Expr values =
      w->Write(kGatherNd, blocks.Split(data, w), w->ExpandDims(place, {RankOf(place)}),
               int64_t(batch + blocks.num_sharded()));
  std::vector<int> behind, shards;
  for (int d = RankOf(place); d < RankOf(values); ++d) behind.push_back(d);
  for (int i = 0; i < blocks.num_sharded(); ++i) shards.push_back(batch + i);
  return SumOfOwn(w->ExpandDims(is_own, behind), values, shards, w);
}

ir::Expr Take(const SpecialCall& call, Writer* w) {
  ir::Expr table = call.arg(0), indices = call.arg(1);
  auto axes = rules::ReadAxes(kTakeAxis(call.attrs()), RankOf(table));
  int axis = axes ? (*axes)[0] : 0;
  int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(table))[axis]);
  std::string mode = kTakeMode.Text(call.attrs());
  if (mode == "clip") indices = w->Write(kClip, indices, ir::MakeInt(0), ir::MakeInt(size - 1));
  if (mode == "wrap")
    indices = w->Write(kFloorMod, indices, w->Scalar(double(size), DtypeOf(indices)));
  return LookUpRows(table, indices, axis, call.SpecialAxes(), w);
}

ir::Expr GatherElements(const SpecialCall& call, Writer* w) {
  int axis = rules::NormalizeAxis(kGatherElementsAxis.Int(call.attrs(), 0), RankOf(call.arg(0)));
  return LookUpElements(call.arg(0), call.arg(1), axis, call.SpecialAxes(), w);
}

// The last dimension of the indices has a position for each dimension looked up.
ir::Expr GatherNd(const SpecialCall& call, Writer* w) {
  const int batch = static_cast<int>(kGatherNdBatch.Int(call.attrs(), 0));
  return LookUpTogether(call.arg(0), Columns(call.arg(1), w), batch, w);
}

ir::Expr IndexTensor(const SpecialCall& call, Writer* w) {
  const ffi::Array<ir::Expr> indices = ir::Tuple::Cast(call.arg(1)).fields();
  int rank = 0;
  for (const ir::Expr& each : indices) rank = std::max(rank, RankOf(each));
  std::vector<ir::Expr> positions;
  for (const ir::Expr& each : indices) {
    std::vector<int> before;
    for (int d = RankOf(each); d < rank; ++d) before.push_back(static_cast<int>(before.size()));
    positions.push_back(w->ExpandDims(each, before));
  }
  return LookUpTogether(call.arg(0), positions, 0, w);
}

const AlgorithmTable kLookups({{"relax.gather_elements", GatherElements},
                               {"relax.gather_nd", GatherNd},
                               {"relax.index_tensor", IndexTensor},
                               {"relax.take", Take}});

}  // namespace

// As Take, but every element has a position of its own, so shards ask for different ones: what is
// not theirs is position 0.
ir::Expr LookUpElements(const ir::Expr& whole, const ir::Expr& positions, int axis,
                        const mesh::AxisList& axes, Writer* w) {
  if (axes.empty()) return w->Write(kGatherElements, whole, positions, int64_t(axis));
  DLDataType dtype = DtypeOf(positions);
  auto [table, length] = Split(whole, axes, axis, w);
  ir::Expr indices = w->ExpandDims(positions, {axis});
  ir::Expr divisor = w->Scalar(static_cast<double>(length), dtype);
  ir::Expr own = w->Cast(w->ShardIndex(axes, axis, RankOf(whole) + 1), dtype);
  ir::Expr is_own = w->Write(kEqual, w->Write(kFloorDivide, indices, divisor), own);
  ir::Expr within =
      w->Write(kWhere, is_own, w->Write(kFloorMod, indices, divisor), w->Scalar(0, dtype));
  ir::Expr values = w->Write(kGatherElements, table, within, int64_t(axis + 1));
  return SumOfOwn(is_own, values, {axis}, w);
}

// A position in the whole table is that within a shard, the same on all devices, and the shard.
ir::Expr LookUpRows(const ir::Expr& whole, const ir::Expr& indices, int axis,
                    const mesh::AxisList& axes, Writer* w) {
  if (axes.empty()) return w->Write(kTake, whole, indices, int64_t(axis), ffi::String("clip"));
  DLDataType dtype = DtypeOf(indices);
  auto [table, length] = Split(whole, axes, axis, w);
  ir::Expr divisor = w->Scalar(static_cast<double>(length), dtype);
  ir::Expr within = w->Write(kFloorMod, indices, divisor);
  ir::Expr values = w->Write(kTake, table, within, int64_t(axis + 1), ffi::String("clip"));
  // (shards, indices.., 1..) broadcasts to the values (.., shards, indices.., ..).
  int num_indices = RankOf(indices), behind = RankOf(whole) - axis - 1;
  ir::Expr shard = w->Write(kFloorDivide, indices, divisor);
  std::vector<int> ones;
  for (int d = 0; d < behind; ++d) ones.push_back(num_indices + d);
  ir::Expr own = w->Cast(w->ShardIndex(axes, 0, 1 + num_indices + behind), dtype);
  ir::Expr is_own = w->Write(kEqual, w->ExpandDims(shard, ones), own);
  return SumOfOwn(is_own, values, {axis}, w);
}

}  // namespace expand
}  // namespace distir
