// Checks that segments stay within their tensors, and do not overlap in the result.
#include "mesh/segments.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace distir::mesh {

namespace {

int64_t LastSource(const Segment& segment) {
  return segment.source + (segment.count - 1) * segment.step;
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

}  // namespace distir::mesh
