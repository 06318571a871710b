// Remembers the axis names of meshes for type inference, which sees a mesh without its module.
#include "dialect/mesh_names.h"

#include <tvm/ffi/container/map.h>

#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/tvm/functions.h"
#include "ir/tvm/reflection.h"
#include "ir/tvm/registration.h"
#include "support/functions.h"

namespace distir::dialect {

namespace {

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

/*! \brief Axis names that an attribute gives a mesh of the global infos; empty if it gives none, or
 * if it is malformed, which passes refuse. */
AxisNames NamesAmong(const ffi::Any& attribute, const ir::GlobalInfoMap& infos,
                     const ir::DeviceMesh& device_mesh) {
  const auto names = attribute.try_cast<ffi::Map<ffi::String, ffi::Array<AxisNames>>>();
  if (!names.has_value()) return {};
  for (const auto& [key, lists] : *names) {
    if (infos.count(key) == 0) continue;
    const ffi::Array<ir::GlobalInfo> meshes = infos.at(key);
    for (size_t i = 0; i < meshes.size() && i < lists.size(); ++i) {
      if (meshes[i].same_as(device_mesh) && lists[i].size() == device_mesh.shape().size())
        return lists[i];
    }
  }
  return {};
}

/*! \brief Names by mesh object; keeps the object, so that no other one gets its address. */
class Remembered {
 public:
  static Remembered& Global() {
    static Remembered remembered;
    return remembered;
  }

  void Set(const ir::DeviceMesh& device_mesh, const AxisNames& names) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto [found, is_new] =
        names_.insert_or_assign(device_mesh.get(), std::make_pair(device_mesh, names));
    if (!is_new) return;
    order_.push_back(device_mesh.get());
    if (order_.size() <= kMostMeshes) return;
    names_.erase(order_.front());
    order_.pop_front();
  }

  AxisNames Find(const ir::DeviceMesh& device_mesh) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = names_.find(device_mesh.get());
    return found == names_.end() ? AxisNames() : found->second.second;
  }

 private:
  static constexpr size_t kMostMeshes = 4096;

  std::mutex mutex_;
  std::unordered_map<const ffi::Object*, std::pair<ir::DeviceMesh, AxisNames>> names_;
  std::deque<const ffi::Object*> order_;
};

/*! \brief Names the axes of a mesh as the module does that is being parsed, if one is. */
void NameAsParsed(MeshTable* table, const ir::DeviceMesh& device_mesh) {
  if (!ir::functions::kIsParsing().cast<bool>()) return;
  const auto frames = FieldOf(ir::functions::kScriptBuilder().cast<ffi::ObjectRef>(), "frames")
                          .as<ffi::Array<ffi::ObjectRef>>();
  if (!frames.has_value()) return;
  for (const ffi::ObjectRef& frame : *frames) {
    const auto infos = FieldOf(frame, "global_infos").as<ir::GlobalInfoMap>();
    if (infos.has_value())
      table->Name(device_mesh, NamesAmong(NamesIn(frame), *infos, device_mesh));
  }
}

}  // namespace

void RememberNames(const ir::DeviceMesh& device_mesh, const AxisNames& names) {
  Remembered::Global().Set(device_mesh, names);
}

void NameAsKnown(MeshTable* table, const ir::DeviceMesh& device_mesh) {
  NameAsParsed(table, device_mesh);
  AxisNames names = Remembered::Global().Find(device_mesh);
  if (names.empty()) {
    const ir::IRModule mod = ir::ModuleOfInference();
    if (mod.defined()) {
      names = NamesAmong(ir::GetAttr(mod.attrs(), kMeshAxesAttr), mod.global_infos(), device_mesh);
    }
  }
  if (names.size() == device_mesh.shape().size()) table->Name(device_mesh, names);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def("distir.op.RememberNames", [](ir::Node mesh, AxisNames names) {
    RememberNames(ir::DeviceMesh::Cast(mesh), names);
  });
}

}  // namespace distir::dialect
