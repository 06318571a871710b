/*!
 * \file mesh/region.h
 * \brief Mesh of a manual region: its axes are those that stay automatic.
 *
 * In a region over the axes M of a mesh every device has values of its own. What devices that
 * differ along M only do with them has the same form, so the region is described by one group of
 * devices that do not: those whose coordinates along M are 0. Its mesh has the axes that are left.
 *
 * Worked example: mesh (2, 4) of devices 0..7, axes x, y. The mesh of a region over y is (2) of
 * devices 0, 4; its axis is x. That of a region over x and y is (1) of device 0.
 */
#ifndef DISTIR_MESH_REGION_H_
#define DISTIR_MESH_REGION_H_

#include <vector>

#include "mesh/sharding.h"

namespace distir::mesh {

struct RegionMesh {
  Mesh mesh;
  AxisList outer;  // per axis of the mesh what it is on the outer one; empty for a mesh of one
};

/*! \brief The mesh of a region over some parts of the axes of a mesh. */
RegionMesh MakeRegionMesh(const Mesh& outer, const AxisList& manual);

/*! \brief An axis, or part of one, on two meshes. */
struct AxisPair {
  AxisRef from;
  AxisRef to;
};

/*! \brief The longest prefix of `axes` that lies within axes of which the other name is known, by
 * that name. Example: [x, y] and the pair x -> z gives [z]. */
AxisList MapPrefix(const AxisList& axes, const std::vector<AxisPair>& pairs);

}  // namespace distir::mesh
#endif  // DISTIR_MESH_REGION_H_
