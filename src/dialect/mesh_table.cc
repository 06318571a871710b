// Converts between TVM's DeviceMesh and Placement and shardings on root meshes.
#include "dialect/mesh_table.h"

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>

#include <algorithm>

#include "dialect/mesh_names.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "support/counted.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

// Name under which TVMScript keeps meshes; views are appended there.
constexpr const char* kMeshInfo = "mesh";

ffi::Map<ffi::String, ffi::Array<AxisNames>> NamesOf(const ir::IRModule& mod) {
  const ffi::Any names = ir::GetAttr(mod.attrs(), kMeshAxesAttr);
  if (names == nullptr) return {};
  auto lists = names.try_cast<ffi::Map<ffi::String, ffi::Array<AxisNames>>>();
  DISTIR_REQUIRE(lists.has_value(), ValueError)
      << "the module attribute " << kMeshAxesAttr
      << " is no map from keys of the global infos to lists of names for each mesh";
  return *lists;
}

}  // namespace

mesh::Mesh ToMesh(const ir::DeviceMesh& device_mesh) {
  mesh::Mesh mesh;
  for (int64_t size : device_mesh.shape()) mesh.shape.push_back(size);
  for (int64_t id : device_mesh.device_ids()) mesh.device_ids.push_back(id);
  return mesh;
}

bool IsDistributed(const ir::Function& function) {
  for (const ir::Var& param : function.params()) {
    if (HasDTensor(param.ty())) return true;
  }
  for (const ir::BindingBlock& block : function.body().blocks()) {
    for (const ir::Binding& binding : block.bindings()) {
      if (HasDTensor(binding.var().ty())) return true;
    }
  }
  return HasDTensor(function.ret_ty());
}

bool HasExplicitReductions(const ir::Function& function) {
  return ir::GetAttr(function.attrs(), kExplicitReductions) != nullptr;
}

bool HasExplicitReductions(const ir::IRModule& mod) {
  for (const auto& [gv, base] : mod.functions()) {
    ir::Function function = ir::Function::Cast(base);
    if (function.defined() && !HasExplicitReductions(function) && IsDistributed(function))
      return false;
  }
  return true;
}

MeshTable::MeshTable(const ir::IRModule& mod) : global_infos_(mod.global_infos()) {
  const ffi::Map<ffi::String, ffi::Array<AxisNames>> names = NamesOf(mod);
  auto enter_all = [&](const std::string& key, const ir::NodeArray<ir::GlobalInfo>& infos) {
    auto named = names.find(key);
    for (size_t i = 0; i < infos.size(); ++i) {
      auto device_mesh = ir::DeviceMesh::Cast(infos[i]);
      if (!device_mesh.defined()) continue;
      const int view = Enter(device_mesh);
      if (named == names.end() || (*named).second.size() <= i || (*named).second[i].empty())
        continue;
      const AxisNames& axes = (*named).second[i];
      DISTIR_REQUIRE(axes.size() == device_mesh.shape().size(), ValueError)
          << "the module attribute " << kMeshAxesAttr << " has "
          << support::Counted(axes.size(), "name", "names") << " for " << key << "[" << i
          << "], a mesh of " << support::Counted(device_mesh.shape().size(), "axis", "axes");
      NameView(view, {axes.begin(), axes.end()});
      RememberNames(device_mesh, axes);
    }
  };
  // The usual place first: roots are numbered in its order, which is the order of pipeline stages.
  auto usual = global_infos_.find(kMeshInfo);
  if (usual != global_infos_.end()) enter_all(kMeshInfo, (*usual).second);
  std::map<std::string, ffi::Array<ir::GlobalInfo>> others;
  for (const auto& [name, infos] : global_infos_) {
    if (name != kMeshInfo) others.emplace(name, infos);
  }
  for (const auto& [name, infos] : others) enter_all(name, infos);
  num_given_ = views_.size();
}

void MeshTable::NameView(int view, const std::vector<std::string>& names) {
  if (!views_[view].mesh.axis_names.empty()) return;
  views_[view].mesh.axis_names = names;
  const int root = views_[view].root;
  if (root_views_[root] == view) roots_[root].axis_names = names;
}

void MeshTable::Name(const ir::DeviceMesh& device_mesh, const AxisNames& names) {
  const int view = ViewOf(device_mesh);
  if (names.empty() || !views_[view].mesh.axis_names.empty()) return;
  NameView(view, {names.begin(), names.end()});
  named_ = true;
}

const mesh::Mesh& MeshTable::NamedMesh(int view) const {
  return views_[view].mesh.axis_names.empty() ? roots_[views_[view].root] : views_[view].mesh;
}

std::string MeshTable::Text(const ir::DTensorType& type) {
  const View& view = views_[ViewOf(type.device_mesh())];
  const mesh::Sharding& sharding = ShardingOf(type);
  if (view.mesh.axis_names.empty()) return Text(view.root, sharding);
  return mesh::ToString(mesh::FromPlacement(view.mesh, PlacementDims(type.placement()),
                                            static_cast<int>(sharding.dims.size()), view.mesh),
                        view.mesh);
}

std::string MeshTable::TextAmongMeshes(const ir::DTensorType& type) {
  const std::string text = Text(type);
  return num_roots() > 1 ? text + " on " + MeshText(type.device_mesh()) : text;
}

std::string MeshTable::TextAmongMeshes(int root, const mesh::Sharding& sharding) const {
  const std::string text = Text(root, sharding);
  return num_roots() > 1 ? text + " on " + mesh::ToString(roots_[root]) : text;
}

std::string MeshTable::MeshText(const ir::DeviceMesh& device_mesh) {
  return mesh::ToString(NamedMesh(device_mesh));
}

std::string MeshTable::AxisName(const ir::DeviceMesh& device_mesh, int axis) {
  return views_[ViewOf(device_mesh)].mesh.AxisName(axis);
}

// A sharding's axes as numbers, with what it is on before them.
MeshTable::ShardingKey MeshTable::Key(int64_t on, const mesh::Sharding& sharding) {
  ShardingKey key{on};
  for (const mesh::AxisList& axes : sharding.dims) {
    key.push_back(-1);
    for (const mesh::AxisRef& ref : axes) {
      for (int64_t number : {int64_t{ref.axis}, ref.pre_size, ref.size}) key.push_back(number);
    }
  }
  return key;
}

namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

MeshTable::Hashes::Hashes(const mesh::Mesh& mesh) : mesh(0), devices(0) {
  for (int64_t size : mesh.shape) this->mesh = Mix(this->mesh ^ static_cast<uint64_t>(size));
  for (int64_t id : mesh.device_ids) {
    this->mesh = Mix(this->mesh ^ static_cast<uint64_t>(id));
    devices += Mix(static_cast<uint64_t>(id));  // in any order
  }
}

int MeshTable::FindView(const mesh::Mesh& mesh, const Hashes& hashes) const {
  const auto [begin, end] = views_by_mesh_.equal_range(hashes.mesh);
  for (auto it = begin; it != end; ++it) {
    if (views_[it->second].mesh == mesh) return it->second;
  }
  return -1;
}

int MeshTable::Enter(const ir::DeviceMesh& device_mesh) {
  mesh::Mesh mesh = ToMesh(device_mesh);
  const Hashes hashes(mesh);
  int view = FindView(mesh, hashes);
  if (view < 0) {
    int root = num_roots();
    std::vector<mesh::AxisList> axes;
    const auto [begin, end] = roots_by_devices_.equal_range(hashes.devices);
    for (auto it = begin; it != end; ++it) {
      if (it->second > root) continue;
      auto related = mesh::Relate(mesh, roots_[it->second]);
      if (!related.has_value()) continue;
      root = it->second;
      axes = std::move(*related);
    }
    if (root == num_roots()) {
      roots_.push_back(mesh);
      root_views_.push_back(static_cast<int>(views_.size()));
      roots_by_devices_.emplace(hashes.devices, root);
      axes = *mesh::Relate(mesh, mesh);
    }
    view = static_cast<int>(views_.size());
    views_.push_back({device_mesh, std::move(mesh), root, std::move(axes)});
    views_by_mesh_.emplace(hashes.mesh, view);
  }
  entered_.push_back(device_mesh);
  view_of_object_.emplace(device_mesh.get(), view);
  return view;
}

int MeshTable::ViewOf(const ir::DeviceMesh& device_mesh) {
  auto it = view_of_object_.find(device_mesh.get());
  return it == view_of_object_.end() ? Enter(device_mesh) : it->second;
}

int MeshTable::RootOf(const ir::DeviceMesh& device_mesh) {
  return views_[ViewOf(device_mesh)].root;
}

const mesh::Sharding& MeshTable::ShardingOf(const ir::DTensorType& type) {
  return ShardingOf(type.device_mesh(), type.placement(), std::max(type.tensor_ty().ndim(), 0));
}

const mesh::Sharding& MeshTable::ShardingOf(const ir::DeviceMesh& device_mesh,
                                            const ir::Placement& placement, int ndim) {
  const int index = ViewOf(device_mesh);
  const View& view = views_[index];
  const PlacementKey key{placement.get(), index, ndim};
  auto it = read_.find(key);
  if (it == read_.end()) {
    std::vector<int> dims = PlacementDims(placement);
    if (static_cast<int>(dims.size()) != view.mesh.ndim()) {
      TVM_FFI_THROW(ValueError) << "placement " << ir::Print(placement) << " has "
                                << support::Counted(dims.size(), "entry", "entries")
                                << ", but its device mesh has "
                                << support::Counted(view.mesh.ndim(), "axis", "axes");
    }
    mesh::Sharding sharding = mesh::FromPlacement(view.mesh, dims, ndim, roots_[view.root]);
    it = read_.emplace(key, ReadPlacement{placement, std::move(sharding)}).first;
  }
  return it->second.sharding;
}

ir::DeviceMesh MeshTable::Intern(const mesh::Mesh& mesh) {
  int view = FindView(mesh, Hashes(mesh));
  if (view < 0) view = Enter(ir::MakeDeviceMesh(mesh.shape, mesh.device_ids));
  return views_[view].object;
}

std::pair<ir::DeviceMesh, ir::Placement> MeshTable::PlacementOf(int root,
                                                                const mesh::Sharding& sharding) {
  ShardingKey key = Key(root, sharding);
  auto it = placements_.find(key);
  if (it == placements_.end()) {
    mesh::MeshPlacement placed = mesh::ToPlacement(roots_[root], sharding);
    // A view that the module already names is better than a new one.
    if (!(placed.mesh == roots_[root])) {
      for (const View& view : views_) {
        if (view.root != root) continue;
        if (auto dims = mesh::ToPlacementOn(view.mesh, roots_[root], sharding)) {
          placed = {view.mesh, *dims};
          break;
        }
      }
    }
    it = placements_
             .emplace(key,
                      std::make_pair(Intern(placed.mesh), ir::MakePlacement(placed.axis_to_dim)))
             .first;
  }
  return it->second;
}

ir::Placement MeshTable::PlacementOn(const ir::DeviceMesh& view, int root,
                                     const mesh::Sharding& sharding) {
  int index = ViewOf(view);
  ShardingKey key = Key(index, sharding);
  auto it = placements_on_view_.find(key);
  if (it == placements_on_view_.end()) {
    auto dims = mesh::ToPlacementOn(views_[index].mesh, roots_[root], sharding);
    ir::Placement placement = dims ? ir::MakePlacement(*dims) : ir::Placement();
    it = placements_on_view_.emplace(std::move(key), placement).first;
  }
  return it->second;
}

ir::DTensorType MeshTable::TypeOf(const ir::TensorType& tensor_ty, int root,
                                  const mesh::Sharding& sharding) {
  auto [device_mesh, placement] = PlacementOf(root, sharding);
  return ir::MakeDTensorType(tensor_ty, device_mesh, placement);
}

ir::GlobalInfoMap MeshTable::GlobalInfos() const {
  if (views_.size() == num_given_) return global_infos_;
  ffi::Array<ir::GlobalInfo> infos;
  auto given = global_infos_.find(kMeshInfo);
  if (given != global_infos_.end()) infos = (*given).second;
  for (size_t i = num_given_; i < views_.size(); ++i) infos.push_back(views_[i].object);
  ir::GlobalInfoMap result = global_infos_;
  result.Set(kMeshInfo, infos);
  return result;
}

ir::Node MeshTable::ModuleAttrs(const ir::Node& attrs) const {
  if (!named_) return attrs;
  ffi::Map<ffi::String, ffi::Array<AxisNames>> names;
  for (const auto& [key, infos] : GlobalInfos()) {
    ffi::Array<AxisNames> lists;
    for (const ir::GlobalInfo& info : infos) {
      AxisNames axes;
      auto view = view_of_object_.find(info.get());
      if (view != view_of_object_.end()) {
        for (const std::string& name : views_[view->second].mesh.axis_names) axes.push_back(name);
      }
      lists.push_back(axes);
    }
    names.Set(key, lists);
  }
  return ir::WithAttr(attrs, kMeshAxesAttr, names);
}

bool MeshTable::IsUneven(const ir::Type& type) {
  if (ir::TupleType::Is(type))
    return ir::AnyLeaf(type, [this](const ir::Type& leaf) { return IsUneven(leaf); });
  auto dtensor = ir::DTensorType::Cast(type);
  if (!dtensor.defined() || !ir::HasKnownShape(dtensor.tensor_ty())) return false;
  const mesh::Sharding& sharding = ShardingOf(dtensor);
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(dtensor.tensor_ty());
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    if (sharding.dims[d].empty()) continue;
    if (!ir::AlwaysDivides(shape[d], mesh::NumShards(sharding.dims[d]))) return true;
  }
  return false;
}

}  // namespace distir::dialect
