/*!
 * \file mesh/layout.h
 * \brief Converts shardings on a mesh to layouts (abi/layout.h), which runtime plans state.
 */
#ifndef DISTIR_MESH_LAYOUT_H_
#define DISTIR_MESH_LAYOUT_H_

#include "abi/layout.h"
#include "mesh/sharding.h"

namespace distir::mesh {

/*! \brief Digits of a device's position that the axes are. */
abi::Digits DigitsOf(const Mesh& mesh, const AxisList& axes);
/*! \brief The layout of a tensor on a mesh. \throws ValueError when the sharding is partial. */
abi::Layout LayoutOf(const Mesh& mesh, const Sharding& sharding);

}  // namespace distir::mesh
#endif  // DISTIR_MESH_LAYOUT_H_
