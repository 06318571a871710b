/*!
 * \file mesh/blocks.h
 * \brief Which block of a tensor every device holds, in units of a grid, and who sends what to
 * whom.
 *
 * Blocks are counted in grid units, so the same pieces serve static and symbolic shapes: a tensor
 * dimension is cut into `grid[d]` equal parts.
 *
 * Worked example: a vector in two shards on devices 0, 1 moves to three shards on devices 1, 2, 3.
 * The grid is (6); 0 holds [0, 3), 1 holds [3, 6). Pieces: 0 -> 1 [0, 2); 0 -> 2 [2, 3), 1 -> 2
 * [3, 4); 1 -> 3 [4, 6).
 */
#ifndef DISTIR_MESH_BLOCKS_H_
#define DISTIR_MESH_BLOCKS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "mesh/sharding.h"

namespace distir {
namespace mesh {

/*! \brief A box in grid units, [begin, end) per tensor dimension. */
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> end;
};

/*!
 * \brief One piece: `source` sends `box` (global grid units) to `target`; device ids; may be the
 * same device.
 */
struct Piece {
  int64_t source;
  int64_t target;
  Box box;
};

struct TransferPlan {
  // Per tensor dimension the least common multiple of both shard counts, or a multiple of that
  // where pieces are cut finer.
  std::vector<int64_t> grid;
  std::vector<Piece> pieces;  // ordered by target id, then box.begin
};

/*!
 * \brief The box that each device of `mesh` (by position) holds, in units of `grid`.
 * \throws ValueError when a dimension's shard count does not divide its grid.
 */
std::vector<Box> DeviceBoxes(const Mesh& mesh, const Sharding& sharding,
                             const std::vector<int64_t>& grid);

/*! \brief How far a device is from another, by id; equal numbers are equally far. */
using Distance = std::function<int(int64_t, int64_t)>;

/*!
 * \brief Moves a tensor from one mesh and sharding to another; the meshes may be the same, overlap
 * or be disjoint. Every target device gets each grid cell exactly once: from itself where it holds
 * it, else from the nearest of its holders, the sending spread evenly over equally near ones. Where
 * fewer devices want a block than hold it, a piece is cut so that all of them send a part, if a
 * dimension of the tensor divides so. Deterministic, and independent of the views by which meshes
 * and shardings are written.
 *
 * \param shape Extents of the tensor, 0 where unknown; empty: all unknown. Pieces are then cut only
 * between grid cells.
 * \param distance Null: all devices are equally far.
 * \throws ValueError when the numbers of dimensions differ or either side is partial.
 */
TransferPlan PlanTransfer(const Mesh& source_mesh, const Sharding& source, const Mesh& target_mesh,
                          const Sharding& target, const std::vector<int64_t>& shape = {},
                          const Distance& distance = nullptr);

}  // namespace mesh
}  // namespace distir
#endif  // DISTIR_MESH_BLOCKS_H_
