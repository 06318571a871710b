/*!
 * \file dialect/notation.cc
 * \brief Shardings of types in the notation of users, for Python.
 */
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/reflection/registry.h>

#include "dialect/mesh_table.h"

namespace distir {
namespace dialect {

namespace {

/*!
 * \brief A function from a DTensor type, and whether to say the mesh where the module has several,
 * to "('dp', None)" or "('dp', None) on (dp=2, tp=4) of devices 0..7".
 */
ffi::Function Notation(ffi::Optional<ir::IRModule> mod) {
  auto meshes = std::make_shared<MeshTable>();
  if (mod.has_value()) *meshes = MeshTable(*mod);
  return ffi::Function::FromTyped([meshes](ir::DTensorType type, bool among_meshes) {
    return ffi::String(among_meshes ? meshes->TextAmongMeshes(type) : meshes->Text(type));
  });
}

TVM_FFI_STATIC_INIT_BLOCK() { ffi::reflection::GlobalDef().def("distir.op.Notation", Notation); }

}  // namespace

}  // namespace dialect
}  // namespace distir
