/*!
 * \file dialect/notation.cc
 * \brief Prints shardings of types and their meshes in the users' notation, for Python.
 */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "dialect/mesh_table.h"
#include "support/functions.h"

namespace distir::dialect {

namespace {

/*!
 * \brief A function from a DTensor type, and whether to say the mesh where the module has several,
 * to "('dp', None)" or "('dp', None) on (dp=2, tp=4) of devices 0..7".
 */
ffi::Function Notation(ffi::Optional<ir::IRModule> mod) {
  auto meshes = std::make_shared<MeshTable>();
  if (mod.has_value()) *meshes = MeshTable(*mod);
  return support::Typed([meshes](ir::DTensorType type, bool among_meshes) {
    return ffi::String(among_meshes ? meshes->TextAmongMeshes(type) : meshes->Text(type));
  });
}

/*!
 * \brief A function from a DTensor type to the mesh whose axes its notation names, which is another
 * one than the type's where passes have made a view of it: sizes, names, device ids.
 */
ffi::Function NamedMesh(ffi::Optional<ir::IRModule> mod) {
  auto meshes = std::make_shared<MeshTable>();
  if (mod.has_value()) *meshes = MeshTable(*mod);
  return support::Typed([meshes](ir::DTensorType type) {
    const mesh::Mesh& named = meshes->NamedMesh(type.device_mesh());
    ffi::Array<ffi::String> names;
    for (int axis = 0; axis < named.ndim(); ++axis) names.push_back(named.AxisName(axis));
    return ffi::Array<ffi::Any>{ffi::Shape(named.shape), names, ffi::Shape(named.device_ids)};
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.op.Notation", Notation).def("distir.op.NamedMesh", NamedMesh);
}

}  // namespace

}  // namespace distir::dialect
