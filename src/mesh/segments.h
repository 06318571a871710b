/*!
 * \file mesh/segments.h
 * \brief Movement along one dimension of a tensor: the elements of the result are segments of those
 * of the source, in any order, with steps between them, some more than once or not at all.
 *
 * Worked example, windows of 3 with 1 before and after, a vector of 8 in 4 shards: shard s of the
 * result, a vector of 16, has the elements 2 s - 1 .. 2 s + 2 of the source. The segments are
 * {0, 1, 1, 3}, {1, 4, 1, 4}, {3, 8, 1, 4}, {5, 12, 1, 3}: the places 0 and 15 of the result are no
 * element's and get a fill value. Every device receives one element from each neighbour.
 */
#ifndef DISTIR_MESH_SEGMENTS_H_
#define DISTIR_MESH_SEGMENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/blocks.h"
#include "mesh/sharding.h"

namespace distir {
namespace mesh {

/*! \brief Places `target`, `target` + 1, .. of the result: elements `source`, `source` + `step`, ..
 */
struct Segment {
  int64_t source;
  int64_t target;
  int64_t step;  // any sign; 0 repeats one element
  int64_t count;
};

/*! \brief Part of a segment that one device has and one gets; positions within their blocks. */
struct SegmentPiece {
  int64_t from;  // device ids; may be the same
  int64_t to;
  Segment segment;
};

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

/*!
 * \brief Who sends what so that every device gets its block of the result. What a device has it
 * takes from itself, the rest from the nearest of those that have it, the sending spread over
 * equally near ones.
 * \param source, target Alike in all dimensions but the one moved along, which divides into its
 * shards on both sides.
 * \return Ordered by `to`, then by place in its block.
 */
std::vector<SegmentPiece> PlanSegments(const Mesh& mesh, const Sharding& source,
                                       const Sharding& target, const MovedDim& moved,
                                       const std::vector<Segment>& segments,
                                       const Distance& distance = nullptr);

}  // namespace mesh
}  // namespace distir
#endif  // DISTIR_MESH_SEGMENTS_H_
