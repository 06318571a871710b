/*!
 * \file mesh/segments.h
 * \brief Segments that move along one dimension of a tensor; see abi/segment_plan.h.
 *
 * Worked example, windows of 3 with 1 before and after, a vector of 8 in 4 shards: shard s of the
 * result, a vector of 16, has the elements 2 s - 1 .. 2 s + 2 of the source. The segments are
 * {0, 1, 1, 3}, {1, 4, 1, 4}, {3, 8, 1, 4}, {5, 12, 1, 3}: the places 0 and 15 of the result are no
 * element's and get a fill value. Every device receives one element from each neighbour.
 */
#ifndef DISTIR_MESH_SEGMENTS_H_
#define DISTIR_MESH_SEGMENTS_H_

#include <cstdint>
#include <vector>

#include "abi/segment_plan.h"

namespace distir::mesh {

using abi::Segment;

/*! \brief Extents of the dimension before and after. */
struct MovedDim {
  int dim;
  int64_t source_size;
  int64_t target_size;
};

/*!
 * \throws ValueError naming the segment where one is empty or lies outside, or where two give the
 * same place of the result.
 */
void CheckSegments(const MovedDim& moved, const std::vector<Segment>& segments);

}  // namespace distir::mesh
#endif  // DISTIR_MESH_SEGMENTS_H_
