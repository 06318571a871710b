/*!
 * \file dialect/parsed_names.h
 * \brief Names of mesh axes in the module that TVMScript is parsing.
 *
 * Type inference sees a call and no module. While a module is parsed, TVM's builder knows what
 * stands above the call: the module's attributes and global infos.
 */
#ifndef DISTIR_DIALECT_PARSED_NAMES_H_
#define DISTIR_DIALECT_PARSED_NAMES_H_

#include "dialect/mesh_table.h"

namespace distir {
namespace dialect {

/*! \brief Names the axes of a mesh as the module does that is being parsed, if one is. */
void NameAsParsed(MeshTable* table, const ir::DeviceMesh& device_mesh);

}  // namespace dialect
}  // namespace distir
#endif  // DISTIR_DIALECT_PARSED_NAMES_H_
