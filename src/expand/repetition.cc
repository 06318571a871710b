// Repetition of a sharded dimension: every device gets the elements of its shard that it lacks.
#include "expand/algorithm.h"
#include "ir/symbolic.h"

namespace distir {
namespace expand {

namespace {

const ir::AttrField kTileRepeats("relax.attrs.TileAttrs", "repeats");

const ir::GlobalFunction kTile("relax.op.tile");

ir::Expr Tile(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  const auto stated = kTileRepeats(call.attrs()).cast<ffi::Array<int64_t>>();
  const int rank = static_cast<int>(call.sharding.results[0].dims.size());
  const int added = rank - RankOf(x);
  std::vector<int64_t> repeats(rank - stated.size(), 1);
  repeats.insert(repeats.end(), stated.begin(), stated.end());
  bool any_left = added > 0;
  for (int d = 0; d < RankOf(x); ++d) {
    int64_t& times = repeats[d + added];
    if (!call.IsSpecial(0, d)) {
      any_left = any_left || times != 1;
      continue;
    }
    const int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[d]);
    std::vector<mesh::Segment> segments;
    for (int64_t i = 0; i < times; ++i) segments.push_back({0, i * size, 1, size});
    x = w->Move(x, d, times * size, segments);
    times = 1;
  }
  return any_left ? w->Write(kTile, x, ffi::Array<int64_t>(repeats.begin(), repeats.end())) : x;
}

const AlgorithmTable kRepetition({{"relax.tile", Tile}});

}  // namespace

}  // namespace expand
}  // namespace distir
