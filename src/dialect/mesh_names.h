/*!
 * \file dialect/mesh_names.h
 * \brief Keeps names of mesh axes for code that has a mesh but no module, as type inference.
 *
 * A module says them in an attribute. While one is parsed, TVM's builder knows what stands above
 * a call. Otherwise the mesh's object is known from where it was named last (a `dx.Mesh`, or a
 * module that a pass has read), or it is one of the module that a BlockBuilder was made for.
 */
#ifndef DISTIR_DIALECT_MESH_NAMES_H_
#define DISTIR_DIALECT_MESH_NAMES_H_

#include "dialect/mesh_table.h"

namespace distir::dialect {

/*! \brief Notes names of a mesh's axes, in place of earlier ones. Of the meshes of a process, the
 * last few thousand are kept. */
void RememberNames(const ir::DeviceMesh& device_mesh, const AxisNames& names);

/*! \brief Names the axes of a mesh in the table, if it is known how. */
void NameAsKnown(MeshTable* table, const ir::DeviceMesh& device_mesh);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_MESH_NAMES_H_
