/*!
 * \file op/notation.cc
 * \brief Shardings of types in the notation of users, for Python.
 */
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/reflection/registry.h>

#include <memory>

#include "op/mesh_table.h"

namespace distir {
namespace op {

namespace {

/*!
 * \brief A function from a DTensor type to its sharding and to the mesh whose axes that names:
 * "('dp', None)" and "(dp=2, tp=4) of devices 0..7", which is empty if the module has no other.
 */
ffi::Function Notation(ffi::Optional<ir::IRModule> mod) {
  auto meshes = std::make_shared<MeshTable>();
  if (mod.has_value()) *meshes = MeshTable(*mod);
  return ffi::Function::FromTyped([meshes](ir::DTensorType type) {
    const std::string text = meshes->Text(type);
    return ffi::Array<ffi::String>{
        text, meshes->num_roots() > 1 ? meshes->MeshText(type.device_mesh()) : ""};
  });
}

TVM_FFI_STATIC_INIT_BLOCK() { ffi::reflection::GlobalDef().def("distir.op.Notation", Notation); }

}  // namespace

}  // namespace op
}  // namespace distir
