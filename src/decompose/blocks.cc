// Splits and joins dimensions so that each device sees its block of indexed dimensions as one
// dimension.
#include "decompose/blocks.h"

#include <algorithm>

#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/symbolic.h"
#include "support/dtypes.h"

namespace distir::decompose {

namespace {

ir::Expr Permute(const ir::Expr& x, const std::vector<int64_t>& order, Writer* w) {
  if (std::is_sorted(order.begin(), order.end())) return x;
  return w->Write(ir::make::kPermuteDims, x, ffi::Array<int64_t>(order.begin(), order.end()));
}

/*! \brief The dimensions of a tensor with those from `begin` on split, and their order with all
 * shards first. */
struct SplitDims {
  ffi::Array<ir::Expr> shape;
  std::vector<int64_t> order;

  SplitDims(const ir::NodeArray<ir::Expr>& whole, int begin, const std::vector<int64_t>& shards) {
    std::vector<int64_t> first, rest;
    const int end = begin + static_cast<int>(shards.size());
    for (int d = 0; d < static_cast<int>(whole.size()); ++d) {
      const int64_t count = d >= begin && d < end ? shards[d - begin] : 0;
      if (count > 0) {
        first.push_back(static_cast<int64_t>(shape.size()));
        shape.push_back(ir::MakeInt(count));
      }
      rest.push_back(static_cast<int64_t>(shape.size()));
      shape.push_back(count > 0 ? ir::FloorDivide(whole[d], count) : whole[d]);
    }
    order = rest;
    order.insert(order.begin() + begin, first.begin(), first.end());
  }
};

}  // namespace

ir::Expr ShardsFirst(const ir::Expr& x, int begin, const std::vector<int64_t>& shards, Writer* w) {
  SplitDims split(ir::ShapeOf(TensorTypeOf(x)), begin, shards);
  return Permute(w->Reshape(x, split.shape), split.order, w);
}

ir::Expr ShardsBack(const ir::Expr& x, const ir::NodeArray<ir::Expr>& shape, int begin,
                    const std::vector<int64_t>& shards, Writer* w) {
  SplitDims split(shape, begin, shards);
  ffi::Array<ir::Expr> permuted;
  std::vector<int64_t> inverse(split.order.size());
  for (size_t i = 0; i < split.order.size(); ++i) {
    permuted.push_back(split.shape[split.order[i]]);
    inverse[split.order[i]] = static_cast<int64_t>(i);
  }
  return w->Reshape(Permute(w->Reshape(x, permuted), inverse, w), shape);
}

ir::Expr Cut(const ir::Expr& x, int dim, int64_t begin, int64_t end, Writer* w) {
  auto one = [](int64_t value) { return ir::MakeTuple({ir::MakeInt(value)}); };
  return w->Write(ir::make::kStridedSlice, x, one(dim), one(begin), one(end), one(1), false);
}

std::vector<ir::Expr> Columns(const ir::Expr& x, Writer* w) {
  const int last = RankOf(x) - 1;
  const int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[last]);
  std::vector<ir::Expr> columns;
  for (int64_t i = 0; i < size; ++i)
    columns.push_back(w->Squeeze(size == 1 ? x : Cut(x, last, i, i + 1, w), {last}));
  return columns;
}

Blocks::Blocks(const ir::Expr& x, int begin, int num, Writer* w)
    : begin_(begin), shape_(ir::ShapeOf(TensorTypeOf(x))) {
  const mesh::Sharding sharding = w->ShardingOf(x);
  for (int i = 0; i < num; ++i) {
    axes_.push_back(sharding.dims[begin + i]);
    const int64_t count = mesh::NumShards(axes_[i]);
    lengths_.push_back(ir::StaticDim(shape_[begin + i]) / count);
    shards_.push_back(axes_[i].empty() ? 0 : count);
    if (!axes_[i].empty()) sharded_.push_back(i);
    places_ *= lengths_[i];
  }
}

ir::Expr Blocks::Split(const ir::Expr& x, Writer* w) const {
  ffi::Array<ir::Expr> merged(shape_.begin(), shape_.begin() + begin_);
  for (int i : sharded_) merged.push_back(ir::MakeInt(shards_[i]));
  merged.push_back(ir::MakeInt(places_));
  for (size_t d = begin_ + axes_.size(); d < shape_.size(); ++d) merged.push_back(shape_[d]);
  return w->Reshape(ShardsFirst(x, begin_, shards_, w), merged);
}

ir::Expr Blocks::Join(const ir::Expr& x, Writer* w) const {
  return ShardsBack(x, shape_, begin_, shards_, w);
}

Blocks::Places Blocks::Find(const std::vector<ir::Expr>& positions, Writer* w) const {
  std::vector<int> of_shards;
  for (int i = 0; i < num_sharded(); ++i) of_shards.push_back(begin_ + i);
  const DLDataType stated = DtypeOf(positions[0]);
  const DLDataType dtype = positions.size() == 1 && stated.bits >= 32 ? stated : kInt64;
  const int rank = RankOf(positions[0]) + num_sharded();
  Places found;
  int64_t stride = places_;
  size_t next = 0;  // of the sharded dimensions
  for (size_t i = 0; i < positions.size(); ++i) {
    ir::Expr place = w->ExpandDims(w->Cast(positions[i], dtype), of_shards);
    if (!axes_[i].empty()) {
      ir::Expr length = w->Scalar(static_cast<double>(lengths_[i]), dtype);
      ir::Expr own = w->Cast(w->ShardIndex(axes_[i], of_shards[next++], rank), dtype);
      ir::Expr is_own =
          w->Write(ir::make::kEqual, w->Write(ir::make::kFloorDivide, place, length), own);
      found.is_own =
          found.is_own.defined() ? w->Write(ir::make::kLogicalAnd, found.is_own, is_own) : is_own;
      place = w->Write(ir::make::kFloorMod, place, length);
    }
    stride /= lengths_[i];
    if (stride > 1)
      place = w->Write(ir::make::kMultiply, place, w->Scalar(static_cast<double>(stride), dtype));
    found.place = found.place.defined() ? w->Write(ir::make::kAdd, found.place, place) : place;
  }
  return found;
}

}  // namespace distir::decompose
