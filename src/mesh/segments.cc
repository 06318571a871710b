#include "mesh/segments.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace distir {
namespace mesh {

namespace {

int64_t LastSource(const Segment& segment) {
  return segment.source + (segment.count - 1) * segment.step;
}

/*! \brief How many elements of a segment, from its first on, lie in the block of that one. */
int64_t CountInBlock(const Segment& segment, int64_t block_size) {
  if (segment.step == 0) return segment.count;
  const int64_t within = segment.source % block_size;
  const int64_t room =
      segment.step > 0 ? (block_size - 1 - within) / segment.step : within / -segment.step;
  return std::min(segment.count, room + 1);
}

/*! \brief The devices of a mesh by the blocks that they hold. */
class Holders {
 public:
  Holders(const Mesh& mesh, const Sharding& sharding) {
    for (int64_t position = 0; position < mesh.size(); ++position) {
      holders_[BlockOf(mesh, sharding, position)].push_back(mesh.device_ids[position]);
    }
    for (auto& [block, devices] : holders_) std::sort(devices.begin(), devices.end());
  }

  static std::vector<int64_t> BlockOf(const Mesh& mesh, const Sharding& sharding,
                                      int64_t position) {
    const std::vector<int64_t> at = mesh.Coordinates(position);
    std::vector<int64_t> block;
    for (const AxisList& axes : sharding.dims) block.push_back(ShardIndex(mesh, axes, at));
    return block;
  }

  const std::vector<int64_t>& Of(const std::vector<int64_t>& block) const {
    return holders_.at(block);
  }

 private:
  std::map<std::vector<int64_t>, std::vector<int64_t>> holders_;
};

/*! \brief The device itself, or the nearest holder, in turn for targets that want the same. */
int64_t ChooseHolder(const std::vector<int64_t>& holders, int64_t target, int64_t turn,
                     const Distance& distance) {
  if (std::binary_search(holders.begin(), holders.end(), target)) return target;
  std::vector<int64_t> nearest;
  int least = std::numeric_limits<int>::max();
  for (int64_t holder : holders) {
    const int far = distance == nullptr ? 0 : distance(holder, target);
    if (far > least) continue;
    if (far < least) nearest.clear();
    least = far;
    nearest.push_back(holder);
  }
  return nearest[turn % static_cast<int64_t>(nearest.size())];
}

}  // namespace

void CheckSegments(const MovedDim& moved, const std::vector<Segment>& segments) {
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const Segment& segment : segments) {
    const int64_t last = LastSource(segment);
    const bool is_inside = segment.count > 0 && segment.target >= 0 &&
                           segment.target + segment.count <= moved.target_size &&
                           std::min(segment.source, last) >= 0 &&
                           std::max(segment.source, last) < moved.source_size;
    if (!is_inside) {
      TVM_FFI_THROW(ValueError) << "segment [" << segment.source << ", " << segment.target << ", "
                                << segment.step << ", " << segment.count
                                << "] does not lead from a dimension of " << moved.source_size
                                << " into one of " << moved.target_size;
    }
    places.emplace_back(segment.target, segment.target + segment.count);
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i].first < places[i - 1].second) {
      TVM_FFI_THROW(ValueError) << "two segments give place " << places[i].first
                                << " of the result";
    }
  }
}

std::vector<SegmentPiece> PlanSegments(const Mesh& mesh, const Sharding& source,
                                       const Sharding& target, const MovedDim& moved,
                                       const std::vector<Segment>& segments,
                                       const Distance& distance) {
  const int64_t source_block = moved.source_size / NumShards(source.dims[moved.dim]);
  const int64_t target_block = moved.target_size / NumShards(target.dims[moved.dim]);
  const Holders holders(mesh, source);
  const Holders wanting(mesh, target);
  std::vector<Segment> ordered = segments;
  std::sort(ordered.begin(), ordered.end(),
            [](const Segment& a, const Segment& b) { return a.target < b.target; });
  std::vector<SegmentPiece> pieces;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const int64_t device = mesh.device_ids[position];
    std::vector<int64_t> block = Holders::BlockOf(mesh, target, position);
    const std::vector<int64_t>& alike = wanting.Of(block);
    const int64_t turn = std::lower_bound(alike.begin(), alike.end(), device) - alike.begin();
    const int64_t begin = block[moved.dim] * target_block, end = begin + target_block;
    auto segment = std::lower_bound(
        ordered.begin(), ordered.end(), begin,
        [](const Segment& each, int64_t place) { return each.target + each.count <= place; });
    for (; segment != ordered.end() && segment->target < end; ++segment) {
      Segment rest = *segment;
      const int64_t skipped = std::max<int64_t>(0, begin - rest.target);
      rest.source += skipped * rest.step;
      rest.target += skipped;
      rest.count = std::min(rest.count - skipped, end - rest.target);
      while (rest.count > 0) {
        block[moved.dim] = rest.source / source_block;
        const int64_t count = CountInBlock(rest, source_block);
        pieces.push_back({ChooseHolder(holders.Of(block), device, turn, distance),
                          device,
                          {rest.source % source_block, rest.target - begin, rest.step, count}});
        rest.source += count * rest.step;
        rest.target += count;
        rest.count -= count;
      }
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const SegmentPiece& a, const SegmentPiece& b) {
    return std::tie(a.to, a.segment.target) < std::tie(b.to, b.segment.target);
  });
  return pieces;
}

}  // namespace mesh
}  // namespace distir
