#include "stages/stage_meshes.h"

#include <algorithm>

#include "cost/exchange.h"
#include "ir/build.h"
#include "op/collective.h"
#include "rules/projection.h"
#include "support/error.h"

namespace distir {
namespace stages {

namespace {

/*! \brief The dims without axes that cut a dimension into more shards than it has elements. */
Dims FittingDims(const Dims& dims, const ir::DeviceMesh& mesh, const ir::TensorType& type) {
  const rules::Sizes sizes = rules::StaticSizes(type);
  std::vector<int64_t> shards(sizes.size(), 1);
  Dims fitting = dims;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const int dim = dims[axis];
    if (dim < 0) continue;
    const bool is_known = dim < static_cast<int>(sizes.size()) && sizes[dim] >= 0;
    if (is_known && shards[dim] * mesh.shape()[axis] > sizes[dim]) {
      fitting[axis] = -1;
    } else if (is_known) {
      shards[dim] *= mesh.shape()[axis];
    }
  }
  return fitting;
}

}  // namespace

StageMeshes::StageMeshes(const ffi::Array<ir::DeviceMesh>& meshes, const ir::DeviceMesh& whole,
                         int axis, op::MeshTable* table)
    : axis_(axis), table_(*table) {
  if (whole.defined()) whole_ = table_.Intern(op::ToMesh(whole));
  for (const ir::DeviceMesh& mesh : meshes) meshes_.push_back(table_.Intern(op::ToMesh(mesh)));
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
    const auto devices = op::ToMesh(meshes_[stage]).device_ids;
    smallest.push_back(*std::min_element(devices.begin(), devices.end()));
  }
  return smallest;
}

Dims StageMeshes::DimsOf(const ir::Call& annotation, const std::string& name) {
  const ir::DeviceMesh mesh = table_.Intern(op::ToMesh(op::TargetMesh(annotation)));
  Dims dims = op::PlacementDims(op::TargetPlacement(annotation));
  for (const ir::DeviceMesh& stage : meshes_) {
    if (mesh.same_as(stage)) return dims;
  }
  DISTIR_REQUIRE(mesh.same_as(whole_), ValueError)
      << "`" << name << "` is annotated on the mesh " << table_.MeshText(mesh)
      << ", which is neither the mesh that is cut into stages nor that of a stage";
  DISTIR_REQUIRE(dims[axis_] < 0, ValueError)
      << "`" << name << "` is sharded over the axis '" << table_.AxisName(mesh, axis_)
      << "' of its mesh, which is the axis of the stages";
  dims.erase(dims.begin() + axis_);
  if (dims.empty()) dims.push_back(-1);
  return dims;
}

ir::Call StageMeshes::Annotate(const ir::Expr& value, int stage, const Dims& dims) const {
  auto type = ir::TensorType::Cast(value.ty());
  const ir::DeviceMesh& mesh = meshes_[stage];
  return op::MakeAnnotation(
      value, mesh, ir::MakePlacement(type.defined() ? FittingDims(dims, mesh, type) : dims));
}

double StageMeshes::TransferSeconds(const cost::Cluster& cluster, int stage,
                                    const ir::TensorType& type, const Dims& dims) {
  const int ndim = rules::ShardableRank(type);
  auto [known, is_new] = transfers_.try_emplace({stage, {ndim, dims}});
  if (is_new) {
    int source_root, target_root;
    const mesh::Sharding source =
        table_.ShardingOf(meshes_[stage - 1], ir::MakePlacement(dims), ndim, &source_root);
    const mesh::Sharding target =
        table_.ShardingOf(meshes_[stage], ir::MakePlacement(dims), ndim, &target_root);
    const cost::Layout from(table_.Root(source_root), source);
    const cost::Layout to(table_.Root(target_root), target);
    constexpr double kProbe = 1 << 30;
    const double fixed = cost::CostOfExchange(cluster, from, to, 0).seconds;
    const double probe = cost::CostOfExchange(cluster, from, to, kProbe).seconds;
    known->second = {fixed, (probe - fixed) / kProbe};
  }
  const double bytes =
      rules::NumElements(rules::StaticSizes(type)) * type.dtype().dtype().bits / 8.0;
  return known->second.fixed + known->second.per_byte * bytes;
}

}  // namespace stages
}  // namespace distir
