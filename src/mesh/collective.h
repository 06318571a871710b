/*!
 * \file mesh/collective.h
 * \brief Kinds of collectives, and the axes that one moves between two shardings.
 *
 * A collective is stated by its kind and the two shardings it leads between; which axes move where
 * follows.
 */
#ifndef DISTIR_MESH_COLLECTIVE_H_
#define DISTIR_MESH_COLLECTIVE_H_

#include "mesh/sharding.h"

namespace distir::mesh {

enum class CollectiveKind {
  kAllGather,      // drops the minor axes of one dimension
  kAllToAll,       // moves the minor axes of one dimension to the minor end of another
  kReduceScatter,  // reduces over axes and shards one dimension by them
  kAllReduce,      // reduces over axes
  kSlice,          // shards one dimension by axes that held copies; no communication
  kPermute,        // whole blocks change devices; the grid of blocks stays
  kExchange,       // every device receives exactly what it lacks of its target block
  kTransfer,       // between different device sets
  kView,  // the same blocks on the same devices, named by another mesh view; no communication
};

constexpr CollectiveKind kAllCollectiveKinds[] = {
    CollectiveKind::kAllGather, CollectiveKind::kAllToAll, CollectiveKind::kReduceScatter,
    CollectiveKind::kAllReduce, CollectiveKind::kSlice,    CollectiveKind::kPermute,
    CollectiveKind::kExchange,  CollectiveKind::kTransfer, CollectiveKind::kView};

/*! \brief True if a collective is one grouped step of sends and receives, by a plan of pieces. */
constexpr bool HasPieces(CollectiveKind kind) {
  return kind == CollectiveKind::kPermute || kind == CollectiveKind::kExchange ||
         kind == CollectiveKind::kTransfer;
}

/*! \brief "all_gather", ... */
const char* CollectiveName(CollectiveKind kind);

/*! \brief Axes that a collective between two shardings on one root mesh moves. */
struct CollectiveStep {
  CollectiveKind kind;
  AxisList axes;    // the axes gathered, moved, reduced or sliced by
  int dim = -1;     // the dimension that loses them (all-gather, all-to-all) or gains them (slice,
                    // reduce-scatter)
  int to_dim = -1;  // all-to-all: the dimension that gains them
};

/*!
 * \brief Reads the step off its two sides.
 * \throws ValueError when a collective of this kind does not lead from `source` to `target`; names
 * both.
 */
CollectiveStep DescribeStep(CollectiveKind kind, const Mesh& root, const Sharding& source,
                            const Sharding& target, const AxisList& reduce_axes);

}  // namespace distir::mesh
#endif  // DISTIR_MESH_COLLECTIVE_H_
