// Registers the operators that enter and leave manual regions, and the collectives within.
#include "dialect/operators/manual.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <string>
#include <utility>

#include "abi/collective.h"
#include "dialect/mesh_names.h"
#include "dialect/operators/collective.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/rewriter.h"
#include "ir/size_text.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "support/counted.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

using mesh::AxisList;

constexpr const char* kEnter = "relax.dist.enter_manual";
constexpr const char* kLeave = "relax.dist.leave_manual";
constexpr const char* kAxesOfRegion = "manual_axes";
constexpr const char* kAxesOfCollective = "axes";

std::string TextOf(const ir::Call& call) {
  return "R." + ir::CalleeName(call).substr(std::string("relax.").size());
}

/*! \brief An attribute that lists distinct axes of the call's mesh. */
std::vector<int> AxesOf(const ir::Call& call, const char* key) {
  auto list = ir::GetAttr(call.attrs(), key).as<ffi::Array<int64_t>>();
  DISTIR_REQUIRE(list.has_value(), ValueError)
      << TextOf(call) << " needs attribute " << key << ", a list of axes of its mesh";
  const int ndim = static_cast<int>(TargetMesh(call).shape().size());
  std::vector<int> axes;
  for (int64_t axis : *list) {
    DISTIR_REQUIRE(axis >= 0 && axis < ndim, ValueError)
        << TextOf(call) << ": " << key << " has " << axis << ", which is no axis of a mesh of "
        << support::Counted(ndim, "axis", "axes");
    DISTIR_REQUIRE(std::find(axes.begin(), axes.end(), axis) == axes.end(), ValueError)
        << TextOf(call) << ": " << key << " has axis " << axis << " twice";
    axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

/*! \brief The dimension that each manual axis of a crossing cuts, by axis of its mesh; -1: none. */
std::vector<int> CutDims(const ir::Call& call) {
  const std::vector<int> axes = AxesOf(call, kAxesOfRegion);
  std::vector<int> dims = PlacementDims(TargetPlacement(call));
  DISTIR_REQUIRE(dims.size() == TargetMesh(call).shape().size(), ValueError)
      << TextOf(call) << ": placement " << ir::Print(TargetPlacement(call)) << " has "
      << support::Counted(dims.size(), "entry", "entries") << " for a mesh of "
      << support::Counted(TargetMesh(call).shape().size(), "axis", "axes");
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const bool is_manual =
        std::find(axes.begin(), axes.end(), static_cast<int>(axis)) != axes.end();
    DISTIR_REQUIRE(is_manual || dims[axis] < 0, ValueError)
        << TextOf(call) << " cuts dimension " << dims[axis] << " along axis " << axis
        << " of its mesh, which is not among its manual axes";
  }
  return dims;
}

/*! \brief Number of parts of each dimension, and their axes in words. */
struct Cut {
  int64_t parts = 1;
  std::string axes;
};

std::vector<Cut> CutsOf(const ir::Call& call, int rank) {
  const ir::DeviceMesh device_mesh = TargetMesh(call);
  MeshTable table;
  NameAsKnown(&table, device_mesh);
  const std::vector<int> dims = CutDims(call);
  std::vector<Cut> cuts(rank);
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] < 0) continue;
    DISTIR_REQUIRE(dims[axis] < rank, ValueError)
        << TextOf(call) << " cuts dimension " << dims[axis] << " of a tensor of "
        << support::Counted(rank, "dimension", "dimensions");
    Cut& cut = cuts[dims[axis]];
    cut.parts *= device_mesh.shape()[axis];
    cut.axes += (cut.axes.empty() ? "'" : ", '") +
                table.AxisName(device_mesh, static_cast<int>(axis)) + "'";
  }
  return cuts;
}

ir::TensorType KnownTensor(const ir::Call& call, const ir::Type& type) {
  auto dtensor = ir::DTensorType::Cast(type);
  auto tensor = dtensor.defined() ? dtensor.tensor_ty() : ir::TensorType::Cast(type);
  DISTIR_REQUIRE(tensor.defined() && ir::HasKnownShape(tensor), TypeError)
      << TextOf(call) << " takes a tensor of known shape, got " << ir::Print(type);
  return ir::WithKnownShape(tensor);
}

ir::Expr Divided(const ir::Call& call, const ir::TensorType& tensor, int dim, int64_t parts,
                 const std::string& axes) {
  const ir::Expr& size = ir::ShapeOf(tensor)[dim];
  DISTIR_REQUIRE(!ir::NeverDivides(size, parts) &&
                     (ir::StaticDim(size) < 0 || ir::StaticDim(size) % parts == 0),
                 ValueError)
      << TextOf(call) << ": dimension " << dim << " of size " << ir::SizeText(size)
      << " does not divide into " << parts << " parts, one for each device along manual axis "
      << axes;
  return ir::FloorDivide(size, parts);
}

ir::Type InferCrossingOfTensor(const ir::Call& call) {
  const ir::TensorType tensor = KnownTensor(call, call.args()[0].ty());
  const std::vector<Cut> cuts = CutsOf(call, tensor.ndim());
  ffi::Array<ir::Expr> shape = ir::ShapeOf(tensor);
  for (int dim = 0; dim < tensor.ndim(); ++dim) {
    if (cuts[dim].axes.empty()) continue;
    shape.Set(dim, IsEnterManual(call.op())
                       ? Divided(call, tensor, dim, cuts[dim].parts, cuts[dim].axes)
                       : ir::Multiply(shape[dim], cuts[dim].parts));
  }
  const ir::TensorType inferred = ir::MakeTensorType(shape, tensor);
  if (call.ty_args().size() != 1) return inferred;
  // A symbolic size that was divided is the same again once it is joined: whole // k * k.
  auto stated = ir::TensorType::Cast(call.ty_args()[0]);
  DISTIR_REQUIRE(stated.defined() && stated.ndim() == tensor.ndim(), ValueError)
      << TextOf(call) << " is stated as " << ir::Print(call.ty_args()[0]) << ", and gives "
      << ir::Print(inferred);
  return stated;
}

}  // namespace

bool IsEnterManual(const ir::Expr& op) { return ir::IsOp(op, kEnter); }
bool IsLeaveManual(const ir::Expr& op) { return ir::IsOp(op, kLeave); }

bool CrossesRegion(const ir::Call& call) {
  return call.defined() && (IsEnterManual(call.op()) || IsLeaveManual(call.op()));
}

const ManualRegion& RegionOfCrossing(const ir::Call& crossing, MeshTable* meshes) {
  return meshes->EnterRegion(TargetMesh(crossing), AxesOf(crossing, kAxesOfRegion));
}

std::vector<AxisList> ManualDims(const ir::Call& crossing, MeshTable* meshes) {
  CutDims(crossing);
  const int rank = KnownTensor(crossing, crossing.args()[0].ty()).ndim();
  return meshes->ShardingOf(TargetMesh(crossing), TargetPlacement(crossing), rank).dims;
}

ir::Call MakeCrossing(const ir::Call& like, const ir::Expr& value, const ir::DTensorType& target) {
  return ir::MakeCall(target, like.op(), {value}, like.attrs(), {target}, like.span());
}

ir::Call MakeImplicitEntry(const ir::Expr& value, const ManualRegion& region,
                           const ir::DTensorType& target, MeshTable* meshes) {
  const auto [view, axes] = meshes->WholeAxes(region.outer, region.manual);
  ffi::Array<int64_t> manual;
  for (int axis : axes) manual.push_back(axis);
  return ir::MakeOpCall(
      target, kEnter, {value},
      {{"device_mesh", view},
       {"placement", ir::MakePlacement(std::vector<int>(view.shape().size(), -1))},
       {kAxesOfRegion, manual}},
      {target});
}

ir::Type InferCrossing(const ir::Call& call) {
  auto stated =
      call.ty_args().size() == 1 ? ir::DTensorType::Cast(call.ty_args()[0]) : ir::DTensorType();
  auto given = ir::DTensorType::Cast(call.args()[0].ty());
  DISTIR_REQUIRE(stated.defined() && given.defined(), ValueError)
      << TextOf(call) << " of a DTensor needs the type of its result, a DTensor";
  const auto& [outer_ty, inner_ty] =
      IsEnterManual(call.op()) ? std::pair(given, stated) : std::pair(stated, given);
  MeshTable table;
  for (const ir::DeviceMesh& mesh : {TargetMesh(call), given.device_mesh(), stated.device_mesh()})
    NameAsKnown(&table, mesh);
  const ManualRegion& region = RegionOfCrossing(call, &table);
  const std::vector<AxisList> manual = ManualDims(call, &table);
  bool fits = table.RootOf(outer_ty) == region.outer && table.RootOf(inner_ty) == region.inner;
  for (size_t d = 0; fits && d < manual.size(); ++d) {
    const AxisList outside = table.ShardingOf(outer_ty).dims[d];
    fits = mesh::IsPrefix(manual[d], outside);
    if (!fits) break;
    const AxisList rest = mesh::RemovePrefix(outside, manual[d]);
    const AxisList inside = region.Inside(rest);
    fits = mesh::NumShards(rest) == mesh::NumShards(inside) &&
           mesh::Canonical(table.ShardingOf(inner_ty).dims[d]) == inside;
  }
  DISTIR_REQUIRE(fits, ValueError)
      << TextOf(call) << " does not lead from " << ir::Print(given) << " to " << ir::Print(stated)
      << ": outside, each dimension is sharded by its manual axes, then as inside";
  return stated;
}

// ---- collectives

std::optional<abi::Collective> ManualCollective(const ir::Expr& op) {
  // All passes ask this of all calls.
  static const auto known = [] {
    std::vector<std::pair<ir::Op, abi::Collective>> found;
    for (const abi::CollectiveRecord& record : abi::CollectiveRecords()) {
      if (*record.manual_text != '\0')
        found.emplace_back(ir::GetOp(abi::InManualRegion(record.collective)), record.collective);
    }
    return found;
  }();
  for (const auto& [manual, collective] : known) {
    if (op.same_as(manual)) return collective;
  }
  return std::nullopt;
}

AxisList ManualAxes(const ir::Call& collective, MeshTable* meshes) {
  AxisList axes;
  for (int axis : AxesOf(collective, kAxesOfCollective)) {
    const AxisList& refs = meshes->AxesOf(TargetMesh(collective))[axis];
    axes.insert(axes.end(), refs.begin(), refs.end());
  }
  return axes;
}

int ManualInteger(const ir::Call& call, const char* key) {
  auto value = ir::GetAttr(call.attrs(), key).as<int64_t>();
  DISTIR_REQUIRE(value.has_value(), ValueError) << TextOf(call) << " needs attribute " << key;
  return static_cast<int>(*value);
}

namespace {

int64_t DevicesAlong(const ir::Call& call) {
  int64_t devices = 1;
  for (int axis : AxesOf(call, kAxesOfCollective)) devices *= TargetMesh(call).shape()[axis];
  return devices;
}

std::string NamesOfAxes(const ir::Call& call) {
  MeshTable table;
  NameAsKnown(&table, TargetMesh(call));
  std::string names;
  for (int axis : AxesOf(call, kAxesOfCollective))
    names += (names.empty() ? "'" : ", '") + table.AxisName(TargetMesh(call), axis) + "'";
  return names;
}

int DimAttr(const ir::Call& call, const char* key, const ir::TensorType& tensor) {
  const int dim = ManualInteger(call, key);
  DISTIR_REQUIRE(dim >= 0 && dim < tensor.ndim(), ValueError)
      << TextOf(call) << ": " << key << "=" << dim << " is no dimension of " << ir::Print(tensor);
  return dim;
}

}  // namespace

std::vector<std::pair<int64_t, int64_t>> PairsOf(const ir::Call& permutation) {
  auto rows = ir::GetAttr(permutation.attrs(), "pairs").as<ffi::Array<ffi::Array<int64_t>>>();
  DISTIR_REQUIRE(rows.has_value(), ValueError)
      << TextOf(permutation) << " needs attribute pairs, a list of [source, target]";
  const int64_t devices = DevicesAlong(permutation);
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const auto& row : *rows) {
    DISTIR_REQUIRE(
        row.size() == 2 && row[0] >= 0 && row[0] < devices && row[1] >= 0 && row[1] < devices,
        ValueError)
        << TextOf(permutation) << ": a pair is [source, target], numbers below " << devices;
    for (const auto& [source, target] : pairs) {
      DISTIR_REQUIRE(source != row[0] && target != row[1], ValueError)
          << TextOf(permutation) << ": device " << (source == row[0] ? source : target) << " "
          << (source == row[0] ? "sends" : "receives") << " twice";
    }
    pairs.emplace_back(row[0], row[1]);
  }
  return pairs;
}

ir::Type InferManualCollective(const ir::Call& call) {
  const abi::CollectiveRecord& record = abi::RecordOf(*ManualCollective(call.op()));
  const ir::TensorType tensor = KnownTensor(call, call.args()[0].ty());
  const int64_t devices = DevicesAlong(call);
  ffi::Array<ir::Expr> shape = ir::ShapeOf(tensor);
  const auto grow = [&](const char* key) {
    const int dim = DimAttr(call, key, tensor);
    shape.Set(dim, ir::Multiply(shape[dim], devices));
  };
  const auto divide = [&](const char* key) {
    const int dim = DimAttr(call, key, tensor);
    shape.Set(dim, Divided(call, tensor, dim, devices, NamesOfAxes(call)));
  };
  if (record.reduces) {
    DISTIR_REQUIRE(ReductionOf(call) != mesh::Reduction::kNone, ValueError)
        << TextOf(call) << " needs attribute reduction, as \"sum\"";
  }
  if (record.collective == abi::Collective::kAllGather) grow("dim");
  if (record.collective == abi::Collective::kReduceScatter) divide("dim");
  if (record.collective == abi::Collective::kPermute) PairsOf(call);
  if (record.collective == abi::Collective::kAllToAll) {
    DISTIR_REQUIRE(ManualInteger(call, "split_dim") != ManualInteger(call, "concat_dim"),
                   ValueError)
        << TextOf(call) << ": split_dim and concat_dim are both "
        << ManualInteger(call, "split_dim");
    divide("split_dim");
    grow("concat_dim");
  }
  return ir::MakeTensorType(shape, tensor);
}

void RequireInRegion(const ir::Call& collective, int root, const std::string& name,
                     MeshTable* meshes) {
  const int outer = meshes->RootOf(TargetMesh(collective));
  const ManualRegion* region = meshes->RegionOf(root);
  AxisList axes = ManualAxes(collective, meshes);
  const bool is_inside =
      region != nullptr && region->outer == outer &&
      std::all_of(axes.begin(), axes.end(), [region](const mesh::AxisRef& ref) {
        return std::any_of(region->manual.begin(), region->manual.end(),
                           [&ref](const mesh::AxisRef& manual) {
                             return mesh::MapPrefix({ref}, {{manual, manual}}).size() == 1;
                           });
      });
  DISTIR_REQUIRE(is_inside || mesh::NumShards(axes) == 1, ValueError)
      << name << " is a collective over " << NamesOfAxes(collective)
      << " of a value that has not entered a manual region over it; give it to the function of "
      << "dx.manual as an argument";
}

namespace {

int64_t NumDevices(const ir::DeviceMesh& mesh) {
  int64_t devices = 1;
  for (int64_t size : mesh.shape()) devices *= size;
  return devices;
}

}  // namespace

MeshTable TableWithRegions(const ir::IRModule& mod) {
  MeshTable meshes(mod);
  std::vector<ir::Call> crossings;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    auto function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    ir::VisitBindings(function.body(), [&crossings](const ir::Binding& binding) {
      const ir::Call call = ir::BoundCall(binding);
      if (CrossesRegion(call)) crossings.push_back(call);
    });
  }
  // A region is known as one within another only behind that one, which is on more devices.
  std::stable_sort(crossings.begin(), crossings.end(), [](const ir::Call& a, const ir::Call& b) {
    return NumDevices(TargetMesh(a)) > NumDevices(TargetMesh(b));
  });
  for (const ir::Call& call : crossings) RegionOfCrossing(call, &meshes);
  return meshes;
}

namespace {

const ir::OnLoad kRegisterManual([] {
  for (const char* name : {kEnter, kLeave}) {
    ir::RegisterOp(name,
                   name == kEnter ? "The part of a tensor that a device has along manual axes."
                                  : "The tensor of which devices along manual axes have parts.",
                   {"x"}, true);
    ir::SetInferType(name, InferCrossingOfTensor);
    ir::SetInferDTensorType(name, InferCrossing);
  }
});

}  // namespace

}  // namespace distir::dialect
