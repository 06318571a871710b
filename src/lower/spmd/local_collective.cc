// Lowers collectives on DTensors to collectives of local tensors in device groups.
#include "lower/spmd/local_collective.h"

#include <string>
#include <utility>
#include <vector>

#include "dialect/operators/collective.h"
#include "dialect/operators/fused_norm.h"
#include "dialect/operators/manual.h"
#include "dialect/operators/token_dispatch.h"
#include "ir/build.h"
#include "lower/spmd/combined_collective.h"
#include "mesh/collective_record.h"

namespace distir::lower {

using mesh::CollectiveKind;

mesh::CollectiveStep LocalCollectives::StepOf(const ir::Call& call, CollectiveKind kind,
                                              const ir::Type& source_ty,
                                              const ir::DTensorType& target_ty) {
  const mesh::Sharding& source = meshes_.ShardingOf(ir::DTensorType::Cast(source_ty));
  const mesh::Sharding& target = meshes_.ShardingOf(target_ty);
  mesh::AxisList reduce_axes;
  std::vector<int> axes_of_target = dialect::ReduceAxes(call);
  if (!axes_of_target.empty()) {
    const auto& axes = meshes_.AxesOf(target_ty.device_mesh());
    for (int axis : axes_of_target)
      reduce_axes.insert(reduce_axes.end(), axes[axis].begin(), axes[axis].end());
  }
  return mesh::DescribeStep(kind, meshes_.Root(meshes_.RootOf(target_ty)), source, target,
                            reduce_axes);
}

const DeviceGroups::Groups& LocalCollectives::GroupsOf(const mesh::CollectiveStep& step,
                                                       const ir::DTensorType& target_ty) {
  return groups_.Along(meshes_.RootOf(target_ty.device_mesh()), step.axes);
}

ffi::Array<ir::Expr> LocalCollectives::OfCombined(
    const ir::Call& call, CollectiveKind kind, const ir::Expr& tuple,
    const std::function<ir::Expr(const ir::Expr&)>& emit) {
  auto source_ty = ir::TupleType::Cast(call.args()[0].ty());
  auto target_ty = ir::TupleType::Cast(call.ty());
  std::vector<CombinedPart> parts;
  mesh::CollectiveStep step;
  ir::DTensorType to;
  for (size_t i = 0; i < target_ty.fields().size(); ++i) {
    to = ir::DTensorType::Cast(target_ty.fields()[i]);
    step = StepOf(call, kind, source_ty.fields()[i], to);
    ir::Expr value = ir::Tuple::Is(tuple) ? ir::Tuple::Cast(tuple).fields()[i]
                                          : emit(ir::MakeTupleGetItem(tuple, static_cast<int>(i)));
    parts.push_back({value, ir::TensorType::Cast(types_.Local(to)), step.dim});
  }
  std::vector<std::pair<const char*, ffi::Any>> attrs = {{"groups", GroupsOf(step, to)}};
  if (kind != CollectiveKind::kAllGather)
    attrs.emplace_back("reduction", ffi::String(mesh::ReductionName(dialect::ReductionOf(call))));
  return EmitCombined(kind, parts, mesh::NumShards(step.axes), attrs, emit);
}

ir::Expr LocalCollectives::Of(const ir::Call& call, CollectiveKind kind, const ir::Expr& value) {
  auto target_ty = ir::DTensorType::Cast(call.ty());
  mesh::CollectiveStep step = StepOf(call, kind, call.args()[0].ty(), target_ty);
  if (kind == CollectiveKind::kView || mesh::NumShards(step.axes) == 1) return value;

  std::vector<std::pair<const char*, ffi::Any>> attrs = {{"groups", GroupsOf(step, target_ty)}};
  if (kind == CollectiveKind::kAllToAll) {
    attrs.emplace_back("split_dim", step.to_dim);
    attrs.emplace_back("concat_dim", step.dim);
  } else if (kind != CollectiveKind::kAllReduce) {
    attrs.emplace_back("dim", step.dim);
  }
  if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter) {
    attrs.emplace_back("reduction", ffi::String(mesh::ReductionName(dialect::ReductionOf(call))));
  }
  const std::string op_name = abi::OnTensors(mesh::RecordedAs(kind));
  return ir::MakeOpCall(types_.Local(target_ty), op_name.c_str(), {value}, attrs);
}

ir::Expr LocalCollectives::OfManual(const ir::Call& call, const ir::Expr& value) {
  const mesh::AxisList axes = dialect::ManualAxes(call, &meshes_);
  if (mesh::NumShards(axes) == 1) return value;
  std::vector<std::pair<const char*, ffi::Any>> attrs = {
      {"groups", groups_.Along(meshes_.RootOf(dialect::TargetMesh(call)), axes)}};
  for (const char* key : {"dim", "split_dim", "concat_dim", "reduction"}) {
    const ffi::Any attr = ir::GetAttr(call.attrs(), key);
    if (attr != nullptr) attrs.emplace_back(key, attr);
  }
  const std::string op_name = abi::OnTensors(*dialect::ManualCollective(call.op()));
  return ir::MakeOpCall(types_.Local(call.ty()), op_name.c_str(), {value}, attrs);
}

ir::Expr LocalCollectives::OfFusedNorm(const ir::Call& call, const ir::NodeArray<ir::Expr>& args) {
  auto target_ty = ir::DTensorType::Cast(ir::TupleType::Cast(call.ty()).fields()[0]);
  mesh::CollectiveStep step =
      StepOf(call, CollectiveKind::kAllReduce, call.args()[0].ty(), target_ty);
  return dialect::MakeLocalFusedNorm(args, types_.Local(call.ty()), GroupsOf(step, target_ty),
                                     dialect::EpsilonOf(call));
}

ir::Expr LocalCollectives::OfTokens(const ir::Call& call, const ir::NodeArray<ir::Expr>& args) {
  const ir::DeviceMesh mesh = ir::DTensorType::Cast(call.args()[0].ty()).device_mesh();
  mesh::AxisList along;
  const auto& axes = meshes_.AxesOf(mesh);
  for (int axis : dialect::ExpertAxes(call))
    along.insert(along.end(), axes[axis].begin(), axes[axis].end());
  return dialect::MakeLocalTokenCall(call, types_.Local(call.ty()), args,
                                     groups_.Along(meshes_.RootOf(mesh), along));
}

}  // namespace distir::lower
