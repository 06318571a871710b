// Resizing along sharded dimensions of an image. Every device gets the pixels around its shard, at
// a border the last one again, and resizes them with the shard, which then is a part of the batch;
// what became of them is cut off.
#include "rules/resizing.h"

#include <algorithm>

#include "expand/algorithm.h"
#include "expand/blocks.h"
#include "ir/build.h"
#include "ir/symbolic.h"

namespace distir {
namespace expand {

namespace {

/*! \brief A sharded dimension: pixels of each shard, and as many before and behind it. */
struct Looked {
  rules::ResizedDim dim;
  int64_t shards;
  int64_t length;
  int64_t around;  // whole groups

  Looked(const rules::ResizedDim& dim, int64_t shards)
      : dim(dim),
        shards(shards),
        length(dim.groups * dim.group / shards),
        around((dim.reach + dim.group - 1) / dim.group * dim.group) {}

  int64_t Resized(int64_t pixels) const { return pixels / dim.group * dim.result_group; }
  int64_t total() const { return length + 2 * around; }

  std::vector<mesh::Segment> Segments() const {
    std::vector<mesh::Segment> segments;
    const int64_t size = shards * length;
    for (int64_t s = 0; s < shards; ++s) {
      const int64_t begin = s * length - around, end = begin + total(), target = s * total();
      const int64_t from = std::max<int64_t>(begin, 0), to = std::min(end, size);
      if (begin < 0) segments.push_back({0, target, 0, -begin});
      segments.push_back({from, target + from - begin, 1, to - from});
      if (end > size) segments.push_back({size - 1, target + size - begin, 0, end - size});
    }
    return segments;
  }
};

/*! \brief The axes of all dimensions, and of the batch that has the shards. */
std::vector<mesh::AxisList> AxesOf(const SpecialCall& call) {
  std::vector<mesh::AxisList> lists = call.sharding.operands[0].dims;
  mesh::AxisList merged;
  for (size_t d = 0; d < lists.size(); ++d) {
    if (call.IsSpecial(0, static_cast<int>(d)))
      merged.insert(merged.end(), lists[d].begin(), lists[d].end());
  }
  merged.insert(merged.end(), lists[0].begin(), lists[0].end());
  lists.push_back(merged);
  return lists;
}

ir::Expr Resize(const SpecialCall& call, Writer* writer) {
  Writer named = writer->OnViewOf(AxesOf(call));
  Writer* w = &named;
  ir::Expr x = w->Named(call.arg(0));
  const ir::TensorType whole = ir::TensorType::Cast(call.result());
  const ffi::Array<ir::Expr>& shape = ir::ShapeOf(whole);
  std::vector<Looked> looked;
  std::vector<int64_t> shards(shape.size(), 0);
  for (const rules::ResizedDim& dim :
       rules::ResizedDims(rules::ViewCall(call.call, call.result()))) {
    if (!call.IsSpecial(0, dim.dim)) continue;
    shards[dim.dim] = mesh::NumShards(call.sharding.operands[0].dims[dim.dim]);
    looked.emplace_back(dim, shards[dim.dim]);
    x = w->Move(x, dim.dim, shards[dim.dim] * looked.back().total(), looked.back().Segments());
  }
  x = ShardsFirst(x, 0, shards, w);
  const ffi::Array<ir::Expr>& apart = ir::ShapeOf(TensorTypeOf(x));
  const size_t batch = looked.size();  // the dimension behind those of shards
  ffi::Array<ir::Expr> merged{
      ir::Product(std::vector<ir::Expr>(apart.begin(), apart.begin() + batch + 1))};
  for (size_t d = batch + 1; d < apart.size(); ++d) merged.push_back(apart[d]);
  x = w->Reshape(x, merged);
  ffi::Array<ir::Expr> size = ir::ShapeExpr::Cast(call.arg(1)).values();
  for (const Looked& each : looked)
    size.Set(each.dim.spatial, ir::MakeInt(each.Resized(each.total())));
  x = w->Place(
      ir::MakeCall(call.call.ty(), call.call.op(), {x, ir::MakeShape(size)}, call.attrs()));
  for (const Looked& each : looked) {
    const int64_t begin = each.Resized(each.around);
    x = Cut(x, each.dim.dim, begin, begin + each.Resized(each.length), w);
  }
  return ShardsBack(x, shape, 0, shards, w);
}

const AlgorithmTable kResizing({{"relax.image.resize2d", Resize},
                                {"relax.image.resize3d", Resize}});

}  // namespace

}  // namespace expand
}  // namespace distir
