#include "dialect/parsed_names.h"

#include <tvm/ffi/container/map.h>

#include <string>
#include <vector>

#include "ir/reflection.h"

namespace distir {
namespace dialect {

namespace {

const ir::GlobalFunction kIsParsing("script.ir_builder.IRBuilderIsInScope");
const ir::GlobalFunction kBuilder("script.ir_builder.IRBuilderCurrent");

ffi::Any FieldOf(const ffi::ObjectRef& object, const std::string& name) {
  const std::vector<ffi::Any> fields = ir::ListFields(object);
  for (size_t i = 0; i + 1 < fields.size(); i += 2) {
    if (fields[i].cast<ffi::String>() == name) return fields[i + 1];
  }
  return nullptr;
}

/*! \brief The names in the attributes of a frame; null for a frame that is not the module's. */
ffi::Any NamesIn(const ffi::ObjectRef& frame) {
  const auto attrs = FieldOf(frame, "attrs").as<ffi::Map<ffi::String, ffi::Any>>();
  if (!attrs.has_value() || attrs->count(kMeshAxesAttr) == 0) return nullptr;
  return attrs->at(kMeshAxesAttr);
}

}  // namespace

void NameAsParsed(MeshTable* table, const ir::DeviceMesh& device_mesh) {
  if (!kIsParsing().cast<bool>()) return;
  const auto frames =
      FieldOf(kBuilder().cast<ffi::ObjectRef>(), "frames").as<ffi::Array<ffi::ObjectRef>>();
  if (!frames.has_value()) return;
  for (const ffi::ObjectRef& frame : *frames) {
    // Passes refuse what is not a table of names.
    const auto names = NamesIn(frame).try_cast<ffi::Map<ffi::String, ffi::Array<AxisNames>>>();
    const auto infos = FieldOf(frame, "global_infos").as<ir::GlobalInfoMap>();
    if (!names.has_value() || !infos.has_value()) continue;
    for (const auto& [key, lists] : *names) {
      if (infos->count(key) == 0) continue;
      const ffi::Array<ir::GlobalInfo> meshes = infos->at(key);
      for (size_t i = 0; i < meshes.size() && i < lists.size(); ++i) {
        if (meshes[i].same_as(device_mesh) && lists[i].size() == device_mesh.shape().size())
          table->Name(device_mesh, lists[i]);
      }
    }
  }
}

}  // namespace dialect
}  // namespace distir
