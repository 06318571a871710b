/*!
 * \file mesh/axis_text.h
 * \brief Prints mesh axes in messages, with a legend for meshes without names.
 */
#ifndef DISTIR_MESH_AXIS_TEXT_H_
#define DISTIR_MESH_AXIS_TEXT_H_

#include <string>

#include "mesh/sharding.h"

namespace distir::mesh {

/*! \brief "mesh axis 'dp'"; of a mesh without names "axis 0 ('x') of the mesh". */
std::string AxisText(const Mesh& mesh, int axis);
/*! \brief Text behind shardings on a mesh without names: "; 'x' is axis 0 of the mesh, which names
 * none"; empty if it has names. */
std::string Legend(const Mesh& mesh);

}  // namespace distir::mesh
#endif  // DISTIR_MESH_AXIS_TEXT_H_
