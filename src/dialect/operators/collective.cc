// Registers the collective operators on DTensors (R.dist) and on local tensors (R.ccl); makes and
// reads their calls.
#include "dialect/operators/collective.h"

#include <tvm/ffi/error.h>

#include <algorithm>

#include "dialect/mesh_names.h"
#include "dialect/mesh_table.h"
#include "dialect/operators/collective_record.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/report.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "mesh/axis_text.h"
#include "mesh/collective_record.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

using mesh::AxisList;
using mesh::Sharding;

}  // namespace

std::optional<CollectiveKind> DTensorCollective(const ir::Expr& op) {
  const abi::CollectiveRecord* record = RecordOnDTensors(op);
  return record == nullptr ? std::nullopt : mesh::KindOf(record->collective);
}
std::optional<CollectiveKind> LocalCollective(const ir::Expr& op) {
  const abi::CollectiveRecord* record = RecordOnTensors(op);
  return record == nullptr ? std::nullopt : mesh::KindOf(record->collective);
}

namespace {

using Attributes = std::vector<std::pair<const char*, ffi::Any>>;

ir::Call MakeDTensorCall(CollectiveKind kind, const ir::Expr& value, const ir::Type& type,
                         Attributes attrs, const std::vector<int>& reduce_axes,
                         mesh::Reduction reduction) {
  if (reduction != mesh::Reduction::kNone) {
    ffi::Array<int64_t> axes;
    for (int axis : reduce_axes) axes.push_back(axis);
    attrs.emplace_back("reduce_axes", axes);
    attrs.emplace_back("reduction", ffi::String(mesh::ReductionName(reduction)));
  }
  return ir::MakeOpCall(type, abi::OnDTensors(mesh::RecordedAs(kind)).c_str(), {value}, attrs);
}

}  // namespace

ir::Call MakeCollective(CollectiveKind kind, const ir::Expr& value, const ir::DTensorType& target,
                        const std::vector<int>& reduce_axes, mesh::Reduction reduction) {
  return MakeDTensorCall(kind, value, target,
                         {{"device_mesh", target.device_mesh()}, {"placement", target.placement()}},
                         reduce_axes, reduction);
}

ir::Call MakeCombinedCollective(CollectiveKind kind, const ir::NodeArray<ir::Expr>& values,
                                const std::vector<ir::DTensorType>& targets,
                                const std::vector<int>& reduce_axes, mesh::Reduction reduction) {
  ffi::Array<ir::Placement> placements;
  ffi::Array<ir::Type> fields;
  for (const ir::DTensorType& target : targets) {
    placements.push_back(target.placement());
    fields.push_back(target);
  }
  return MakeDTensorCall(kind, ir::MakeTuple(values), ir::MakeTupleType(fields),
                         {{"device_mesh", targets[0].device_mesh()}, {"placement", placements}},
                         reduce_axes, reduction);
}

bool CanCombine(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
         kind == CollectiveKind::kReduceScatter;
}

ir::Call MakeRedistribute(const ir::Expr& value, const ir::DTensorType& target) {
  DISTIR_REQUIRE(target.tensor_ty().has_dtype(), ValueError)
      << "`" << (ir::Var::Is(value) ? ir::Var::Cast(value).name() : "a value")
      << "` is redistributed, and no dtype of it is known; state it, as in R.Tensor(shape, "
         "\"float32\")";
  ir::Count("redistributions");
  ir::Call call =
      ir::make::kDistRedistribute(value, target.device_mesh(), target.placement()).cast<ir::Call>();
  ir::SetType(call, target);
  return call;
}

ir::DeviceMesh TargetMesh(const ir::Call& call) {
  ffi::Any value = ir::attrs::kDistributionDeviceMesh(call.attrs());
  if (value == nullptr) value = ir::GetAttr(call.attrs(), "device_mesh");
  ir::DeviceMesh mesh = ir::DeviceMesh::Cast(value.cast<ffi::ObjectRef>());
  DISTIR_REQUIRE(mesh.defined(), ValueError)
      << "attribute device_mesh of " << ir::CalleeName(call) << " is no device mesh";
  return mesh;
}

ir::Placement TargetPlacement(const ir::Call& call) {
  ffi::Any value = ir::attrs::kDistributionPlacement(call.attrs());
  if (value == nullptr) value = ir::GetAttr(call.attrs(), "placement");
  ir::Placement placement = ir::Placement::Cast(value.cast<ffi::ObjectRef>());
  DISTIR_REQUIRE(placement.defined(), ValueError)
      << "attribute placement of " << ir::CalleeName(call) << " is no placement";
  return placement;
}

std::vector<int> ReduceAxes(const ir::Call& call) {
  std::vector<int> axes;
  auto list = ir::GetAttr(call.attrs(), "reduce_axes").as<ffi::Array<int64_t>>();
  if (list.has_value()) {
    for (int64_t axis : *list) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

mesh::Reduction ReductionOf(const ir::Call& call) {
  auto name = ir::GetAttr(call.attrs(), "reduction").as<ffi::String>();
  return name.has_value() ? mesh::ReductionFromName(static_cast<std::string>(*name))
                          : mesh::Reduction::kNone;
}

namespace {

// ---- type inference of R.dist.*

ir::Type InferOne(const ir::Call& call, CollectiveKind kind, const ir::Type& type,
                  const ir::DeviceMesh& device_mesh, const ir::Placement& placement) {
  ir::DTensorType source_ty = ir::DTensorType::Cast(type);
  DISTIR_REQUIRE(source_ty.defined(), TypeError)
      << "R.dist." << CollectiveName(kind) << " takes a DTensor, got " << ir::Print(type);
  MeshTable table;
  NameAsKnown(&table, source_ty.device_mesh());
  NameAsKnown(&table, device_mesh);
  const int root = table.RootOf(source_ty);
  const Sharding& source = table.ShardingOf(source_ty);
  const Sharding& target =
      table.ShardingOf(device_mesh, placement, static_cast<int>(source.dims.size()));
  ir::DTensorType target_ty = ir::MakeDTensorType(source_ty.tensor_ty(), device_mesh, placement);
  if (kind == CollectiveKind::kTransfer) return target_ty;
  DISTIR_REQUIRE(root == table.RootOf(device_mesh), ValueError)
      << "R.dist." << CollectiveName(kind) << " stays on one device set, got "
      << ir::Print(source_ty) << " and " << ir::Print(target_ty);
  AxisList reduce_axes;
  const std::vector<AxisList>& views = table.AxesOf(device_mesh);
  for (int axis : ReduceAxes(call)) {
    DISTIR_REQUIRE(axis >= 0 && axis < static_cast<int>(views.size()), ValueError)
        << "R.dist." << CollectiveName(kind) << ": reduce axis " << axis
        << " is no axis of the device mesh";
    reduce_axes.insert(reduce_axes.end(), views[axis].begin(), views[axis].end());
  }
  try {
    mesh::DescribeStep(kind, table.Root(root), source, target, reduce_axes);
  } catch (const ffi::Error& error) {
    // The module is printed with TVM's placements, so they are said, too.
    TVM_FFI_THROW(ValueError) << error.message() << "; in TVMScript \""
                              << PlacementText(source_ty.placement()) << "\" to \""
                              << PlacementText(placement) << "\"" << mesh::Legend(table.Root(root));
  }
  return target_ty;
}

}  // namespace

ir::Type InferCollective(const ir::Call& call, CollectiveKind kind, const ir::Type& type) {
  return InferOne(call, kind, type, TargetMesh(call), TargetPlacement(call));
}

namespace {

ir::Type InferDTensorCollective(const ir::Call& call) {
  CollectiveKind kind = *DTensorCollective(call.op());
  const ir::Type& type = call.args()[0].ty();
  auto tuple = ir::TupleType::Cast(type);
  if (!tuple.defined()) return InferCollective(call, kind, type);
  auto placements = ir::GetAttr(call.attrs(), "placement").as<ffi::Array<ir::Placement>>();
  DISTIR_REQUIRE(CanCombine(kind) && placements.has_value() &&
                     placements->size() == tuple.fields().size() && !tuple.fields().empty(),
                 ValueError)
      << "R.dist." << CollectiveName(kind) << " of a tuple "
      << (CanCombine(kind) ? "takes one placement for each field" : "is not known");
  ffi::Array<ir::Type> fields;
  for (size_t i = 0; i < tuple.fields().size(); ++i)
    fields.push_back(InferOne(call, kind, tuple.fields()[i], TargetMesh(call), (*placements)[i]));
  return ir::MakeTupleType(fields);
}

ir::Type InferRedistribute(const ir::Call& call) {
  std::vector<ir::Type> types{call.args()[0].ty()};
  ir::TensorType tensor_ty = ir::TensorType::Cast(types[0]);
  if (auto source = ir::DTensorType::Cast(types[0]); source.defined())
    tensor_ty = source.tensor_ty();
  DISTIR_REQUIRE(tensor_ty.defined(), TypeError)
      << "R.dist.redistribute takes a tensor, got " << ir::Print(types[0]);
  ir::DeviceMesh device_mesh = TargetMesh(call);
  ir::Placement placement = TargetPlacement(call);
  MeshTable table;
  NameAsKnown(&table, device_mesh);
  // Throws where placement and tensor do not fit.
  table.ShardingOf(device_mesh, placement, std::max(tensor_ty.ndim(), 0));
  return ir::MakeDTensorType(tensor_ty, device_mesh, placement);
}

// ---- type inference of R.ccl.*

int64_t GroupSize(const ir::Call& call) {
  auto groups = ir::GetAttr(call.attrs(), "groups").as<ffi::Array<ffi::Array<int64_t>>>();
  DISTIR_REQUIRE(groups.has_value() && !groups->empty(), ValueError)
      << ir::CalleeName(call) << " needs attribute groups, a list of lists of device ids";
  return static_cast<int64_t>((*groups)[0].size());
}

int IntAttr(const ir::Call& call, const char* key) {
  auto value = ir::GetAttr(call.attrs(), key).as<int64_t>();
  DISTIR_REQUIRE(value.has_value(), ValueError)
      << ir::CalleeName(call) << " needs attribute " << key;
  return static_cast<int>(*value);
}

ir::Type InferLocalCollective(const ir::Call& call) {
  CollectiveKind kind = *LocalCollective(call.op());
  ir::TensorType source = ir::TensorType::Cast(call.args()[0].ty());
  DISTIR_REQUIRE(source.defined() && ir::HasKnownShape(source), TypeError)
      << "R.ccl." << CollectiveName(kind) << " takes a Tensor of known shape, got "
      << ir::Print(call.args()[0].ty());
  if (mesh::HasPieces(kind)) {
    DISTIR_REQUIRE(call.ty_args().size() == 1, ValueError)
        << ir::CalleeName(call) << " needs the type of its result";
    return call.ty_args()[0];
  }
  ffi::Array<ir::Expr> shape = ir::ShapeOf(source);
  auto scale = [&](const char* key, bool grow) {
    int dim = IntAttr(call, key);
    DISTIR_REQUIRE(dim >= 0 && dim < static_cast<int>(shape.size()), ValueError)
        << "R.ccl." << CollectiveName(kind) << ": " << key << "=" << dim << " is no dimension of "
        << ir::Print(source);
    int64_t size = GroupSize(call);
    shape.Set(dim, grow ? ir::Multiply(shape[dim], size) : ir::FloorDivide(shape[dim], size));
  };
  switch (kind) {
    case CollectiveKind::kAllGather:
      scale("dim", true);
      break;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kSlice:
      scale("dim", false);
      break;
    case CollectiveKind::kAllToAll:
      scale("split_dim", false);
      scale("concat_dim", true);
      break;
    default:
      return source;
  }
  return ir::MakeTensorType(shape, source);
}

ir::Type InferFromTypeArgs(const ir::Call& call) {
  DISTIR_REQUIRE(call.ty_args().size() == 1, ValueError)
      << ir::CalleeName(call) << " needs the type of its result";
  return call.ty_args()[0];
}

ir::Type InferSend(const ir::Call&) { return ir::MakeTupleType({}); }

const ir::OnLoad kRegisterCollective([] {
  for (CollectiveKind kind : mesh::kAllCollectiveKinds)
    RegisterCollective(mesh::RecordedAs(kind), InferDTensorCollective, InferLocalCollective);
  RegisterCollective(abi::Collective::kSend, nullptr, InferSend);
  RegisterCollective(abi::Collective::kRecv, nullptr, InferFromTypeArgs);
  // A Tensor in a distributed function is a value that every device has made alike.
  ir::SetInferType("relax.dist.redistribute", InferRedistribute);
  ir::SetInferDTensorType("relax.dist.redistribute", InferRedistribute);
});

}  // namespace

}  // namespace distir::dialect
