/*!
 * \file mesh/common_view.h
 * \brief Finds one view of a mesh that names many lists of axis references.
 */
#ifndef DISTIR_MESH_COMMON_VIEW_H_
#define DISTIR_MESH_COMMON_VIEW_H_

#include <optional>
#include <vector>

#include "mesh/sharding.h"

namespace distir::mesh {

/*!
 * \brief A view on which every list can be named, so that tensors sharded by them can meet in one
 * operation: each list is the axes of one tensor dimension, which nest in mesh order. References
 * are cut where others begin or end; axes keep the root's order as far as the lists allow.
 * Example: [x of 4], [x:(1)2] and [x:(2)2, y] on root (4, 2) need the view (2, 2, 2) with axes
 * x:(1)2, x:(2)2, y; [y, x] needs the transposed view (2, 4).
 * \return nullopt when two lists nest their parts in opposite orders, or cut an axis in ways that
 * are not parts of one split.
 */
std::optional<Mesh> CommonView(const Mesh& root, const std::vector<AxisList>& lists);

}  // namespace distir::mesh
#endif  // DISTIR_MESH_COMMON_VIEW_H_
