// Converts the steps of plans to calls on DTensors, and calls to steps.
#include "redistribute/steps.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/symbolic.h"

namespace distir::redistribute {

namespace {

// Extent assumed for a symbolic dimension in the size of a tensor.
constexpr int64_t kAssumedExtent = 1024;

/*! \brief The axes of a view, given by what they are on the root, that together are `axes`; nullopt
 * where the view cuts them otherwise.
 */
std::optional<std::vector<int>> NameAxes(const std::vector<mesh::AxisList>& view,
                                         const mesh::AxisList& axes, bool in_order) {
  std::vector<int> names;
  mesh::Sharding named, wanted;
  wanted.partial = axes;
  for (size_t axis = 0; axis < view.size(); ++axis) {
    const mesh::AxisList& refs = view[axis];
    if (!mesh::Overlaps(refs, axes)) continue;
    names.push_back(static_cast<int>(axis));
    named.partial.insert(named.partial.end(), refs.begin(), refs.end());
  }
  bool same = in_order ? mesh::Canonical(named.partial) == mesh::Canonical(wanted.partial)
                       : mesh::Canonical(named).partial == mesh::Canonical(wanted).partial;
  if (!same) return std::nullopt;
  return names;
}

}  // namespace

planning::TensorSize SizeOf(const ir::TensorType& type) {
  planning::TensorSize size;
  size.bytes = ir::BytesPerElement(type);
  for (const ir::Expr& dim : ir::ShapeOf(type)) {
    int64_t extent = ir::StaticDim(dim);
    size.dims.push_back(std::max<int64_t>(extent, 0));
    size.bytes *= static_cast<double>(extent < 0 ? kAssumedExtent : extent);
  }
  return size;
}

ir::Call MakeStep(const ir::Expr& value, const planning::PlanStep& step, mesh::Reduction reduction,
                  int root, const ir::TensorType& tensor_ty, const ir::DTensorType& wanted,
                  dialect::MeshTable* meshes) {
  const mesh::Mesh& root_mesh = meshes->Root(root);
  mesh::Sharding result = step.result;  // types say nothing of what is still partial
  result.partial.clear();
  result.reduction = mesh::Reduction::kNone;
  ir::Placement on_wanted;
  if (wanted.defined()) on_wanted = meshes->PlacementOn(wanted.device_mesh(), root, result);
  if (step.reduce_axes.empty()) {
    ir::DTensorType target = on_wanted.defined()
                                 ? ir::MakeDTensorType(tensor_ty, wanted.device_mesh(), on_wanted)
                                 : meshes->TypeOf(tensor_ty, root, result);
    return dialect::MakeCollective(step.kind, value, target);
  }
  bool in_order = step.kind == mesh::CollectiveKind::kReduceScatter;
  if (on_wanted.defined()) {
    const auto& view = meshes->AxesOf(wanted.device_mesh());
    if (auto axes = NameAxes(view, step.reduce_axes, in_order)) {
      auto target = ir::MakeDTensorType(tensor_ty, wanted.device_mesh(), on_wanted);
      return dialect::MakeCollective(step.kind, value, target, *axes, reduction);
    }
  }
  mesh::MeshPlacement placed = mesh::ToPlacement(root_mesh, result, step.reduce_axes);
  const ir::DeviceMesh view = meshes->Intern(placed.mesh);
  const std::vector<mesh::AxisList>& views = meshes->AxesOf(view);
  std::vector<int> reduce_axes;
  for (size_t axis = 0; axis < views.size(); ++axis) {
    if (mesh::Overlaps(views[axis], step.reduce_axes))
      reduce_axes.push_back(static_cast<int>(axis));
  }
  ir::DTensorType target =
      ir::MakeDTensorType(tensor_ty, view, ir::MakePlacement(placed.axis_to_dim));
  return dialect::MakeCollective(step.kind, value, target, reduce_axes, reduction);
}

}  // namespace distir::redistribute
