// Makes the meshes of stages, and translates placements to them.
#include "stages/stage_meshes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cost/exchange.h"
#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/call/projection.h"
#include "support/error.h"

namespace distir::stages {

namespace {

/*! \brief The dims without axes that cut a dimension into more shards than it has elements. */
Dims FittingDims(const Dims& dims, const ir::DeviceMesh& mesh, const ir::TensorType& type) {
  const rules::Sizes sizes = rules::StaticSizes(type);
  Dims fitting(dims.size());
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    const bool is_known = dim < sizes.size() && sizes[dim] >= 0;
    int64_t shards = 1;
    for (int axis : dims[dim]) {
      const int64_t size = mesh.shape()[axis];
      if (is_known && shards * size > sizes[dim]) continue;
      shards *= size;
      fitting[dim].push_back(axis);
    }
  }
  return fitting;
}

/*! \brief Per tensor dimension the axes of its shards, from the dimension that each axis shards. */
Dims ToDims(const std::vector<int>& axis_to_dim) {
  Dims dims;
  for (size_t axis = 0; axis < axis_to_dim.size(); ++axis) {
    if (axis_to_dim[axis] < 0) continue;
    const auto dim = static_cast<size_t>(axis_to_dim[axis]);
    dims.resize(std::max(dims.size(), dim + 1));
    dims[dim].push_back(static_cast<int>(axis));
  }
  return dims;
}

}  // namespace

StageMeshes::StageMeshes(const ir::NodeArray<ir::DeviceMesh>& meshes, const ir::DeviceMesh& whole,
                         int axis, dialect::MeshTable* table)
    : axis_(axis), table_(*table) {
  if (whole.defined()) whole_ = table_.Intern(dialect::ToMesh(whole));
  for (const ir::DeviceMesh& mesh : meshes) meshes_.push_back(table_.Intern(dialect::ToMesh(mesh)));
}

double StageMeshes::NumDevices(int stage) const {
  return static_cast<double>(meshes_[stage].device_ids().size());
}

int StageMeshes::FirstOnMeshOf(int stage) const {
  int first = 0;
  while (!meshes_[first].same_as(meshes_[stage])) ++first;
  return first;
}

bool StageMeshes::IsInterleaved() const {
  for (size_t stage = 1; stage < meshes_.size(); ++stage) {
    const int first = FirstOnMeshOf(static_cast<int>(stage));
    if (first < static_cast<int>(stage) && !meshes_[stage].same_as(meshes_[stage - 1])) return true;
  }
  return false;
}

ffi::Array<int64_t> StageMeshes::SmallestDevices() const {
  ffi::Array<int64_t> smallest;
  for (size_t stage = 0; stage < meshes_.size(); ++stage) {
    if (FirstOnMeshOf(static_cast<int>(stage)) < static_cast<int>(stage)) continue;
    const auto devices = dialect::ToMesh(meshes_[stage]).device_ids;
    smallest.push_back(*std::min_element(devices.begin(), devices.end()));
  }
  return smallest;
}

Dims StageMeshes::DimsOf(const ir::Call& annotation, const std::string& name) {
  ir::DeviceMesh mesh = table_.Intern(dialect::ToMesh(dialect::TargetMesh(annotation)));
  const ir::Placement placement = dialect::TargetPlacement(annotation);
  auto is_known = [this](const ir::DeviceMesh& mesh) {
    return mesh.same_as(whole_) ||
           std::any_of(meshes_.begin(), meshes_.end(),
                       [&](const auto& each) { return mesh.same_as(each); });
  };
  std::optional<Dims> stated;
  if (is_known(mesh)) {
    stated = ToDims(dialect::PlacementDims(placement));
  } else {
    // A view of one of them, on which axes have another order.
    auto type = ir::TensorType::Cast(annotation.args()[0].ty());
    const mesh::Sharding& sharding =
        table_.ShardingOf(mesh, placement, type.defined() ? std::max(type.ndim(), 0) : 0);
    const ir::DeviceMesh root_mesh = table_.RootMesh(table_.RootOf(mesh));
    if (is_known(root_mesh)) stated = propagation::WholeAxes(dialect::ToMesh(root_mesh), sharding);
    if (stated.has_value()) mesh = root_mesh;
  }
  DISTIR_REQUIRE(stated.has_value(), ValueError)
      << "`" << name << "` is annotated on the mesh " << table_.MeshText(mesh)
      << ", which is neither the mesh that is cut into stages nor that of a stage";
  if (!mesh.same_as(whole_)) return *stated;
  for (std::vector<int>& axes : *stated) {
    for (int& axis : axes) {
      DISTIR_REQUIRE(axis != axis_, ValueError)
          << "`" << name << "` is sharded over the axis '" << table_.AxisName(mesh, axis_)
          << "' of its mesh, which is the axis of the stages";
      if (axis > axis_) --axis;
    }
  }
  return *stated;
}

std::pair<ir::DeviceMesh, ir::Placement> StageMeshes::Placed(int stage, const Dims& dims) {
  const ir::DeviceMesh& mesh = meshes_[stage];
  const mesh::Mesh plain = dialect::ToMesh(mesh);
  std::vector<int> axis_to_dim(plain.ndim(), -1);
  mesh::Sharding sharding;
  bool in_order = true;
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    in_order = in_order && std::is_sorted(dims[dim].begin(), dims[dim].end());
    sharding.dims.emplace_back();
    for (int axis : dims[dim]) {
      axis_to_dim[axis] = static_cast<int>(dim);
      sharding.dims.back().push_back(mesh::FullAxis(plain, axis));
    }
  }
  if (in_order) return {mesh, ir::MakePlacement(axis_to_dim)};
  const mesh::MeshPlacement placed = mesh::ToPlacement(plain, mesh::Canonical(sharding));
  return {table_.Intern(placed.mesh), ir::MakePlacement(placed.axis_to_dim)};
}

ir::Call StageMeshes::Annotate(const ir::Expr& value, int stage, const Dims& dims) {
  return Annotate(value, stage, dims, ir::Call(), "");
}

ir::Call StageMeshes::AnnotateAs(const ir::Call& annotation, const ir::Expr& value, int stage,
                                 const std::string& name) {
  return Annotate(value, stage, DimsOf(annotation, name), annotation, name);
}

ir::Call StageMeshes::Annotate(const ir::Expr& value, int stage, const Dims& dims,
                               const ir::Call& annotation, const std::string& name) {
  auto type = ir::TensorType::Cast(value.ty());
  auto [mesh, placement] =
      Placed(stage, type.defined() ? FittingDims(dims, meshes_[stage], type) : dims);
  return dialect::MakeAnnotation(value, mesh, placement, TermsOn(mesh, stage, annotation, name));
}

dialect::Terms StageMeshes::TermsOn(const ir::DeviceMesh& placed, int stage,
                                    const ir::Call& annotation, const std::string& name) {
  if (!annotation.defined()) return {};
  auto type = ir::TensorType::Cast(annotation.args()[0].ty());
  const int rank = type.defined() ? std::max(type.ndim(), 0) : 0;
  dialect::Terms terms = dialect::TermsOf(annotation, "`" + name + "`", rank);
  const std::vector<int> stated = std::exchange(terms.replicated, {});
  if (stated.empty()) return terms;
  // By the axes of the whole mesh or of a stage's, as DimsOf; then by those of the view.
  ir::DeviceMesh mesh = table_.Intern(dialect::ToMesh(dialect::TargetMesh(annotation)));
  const ir::DeviceMesh root_mesh = table_.RootMesh(table_.RootOf(mesh));
  const bool is_whole =
      whole_.defined() && root_mesh.same_as(table_.RootMesh(table_.RootOf(whole_)));
  const ir::DeviceMesh& named = is_whole ? whole_ : meshes_[stage];
  const std::vector<mesh::AxisList> views = table_.AxesOf(mesh);
  const std::vector<mesh::AxisList> axes = table_.AxesOf(named);
  const std::vector<mesh::AxisList> on_stage = table_.AxesOf(meshes_[stage]);
  const std::vector<mesh::AxisList> on_placed = table_.AxesOf(placed);
  for (int replicated : stated) {
    for (int axis = 0; axis < static_cast<int>(axes.size()); ++axis) {
      if (!mesh::Overlaps(views[replicated], axes[axis]) || (is_whole && axis == axis_)) continue;
      const mesh::AxisList& kept = on_stage[is_whole && axis > axis_ ? axis - 1 : axis];
      for (int at = 0; at < static_cast<int>(on_placed.size()); ++at) {
        if (mesh::Overlaps(kept, on_placed[at])) terms.replicated.push_back(at);
      }
    }
  }
  std::sort(terms.replicated.begin(), terms.replicated.end());
  return terms;
}

double StageMeshes::TransferSeconds(const cost::Cluster& cluster, int stage,
                                    const ir::TensorType& type, const Dims& dims) {
  const int ndim = rules::ShardableRank(type);
  auto [known, is_new] = transfers_.try_emplace({stage, {ndim, dims}});
  if (is_new) {
    const auto [source_mesh, source_placement] = Placed(stage - 1, dims);
    const auto [target_mesh, target_placement] = Placed(stage, dims);
    const mesh::Sharding source = table_.ShardingOf(source_mesh, source_placement, ndim);
    const mesh::Sharding target = table_.ShardingOf(target_mesh, target_placement, ndim);
    const cost::Layout from(table_.Root(table_.RootOf(source_mesh)), source);
    const cost::Layout to(table_.Root(table_.RootOf(target_mesh)), target);
    constexpr double kProbe = 1 << 30;
    const double fixed = cost::CostOfExchange(cluster, from, to, 0).seconds;
    const double probe = cost::CostOfExchange(cluster, from, to, kProbe).seconds;
    known->second = {fixed, (probe - fixed) / kProbe};
  }
  const double bytes = rules::NumElements(rules::StaticSizes(type)) * ir::BytesPerElement(type);
  return known->second.fixed + known->second.per_byte * bytes;
}

}  // namespace distir::stages
