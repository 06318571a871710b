#include "dialect/operators/token_dispatch.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <string>

#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "support/error.h"

namespace distir {
namespace dialect {

namespace {

const std::string kDistDispatch = std::string("relax.dist.") + kDispatchTokens;
const std::string kDistMatmul = std::string("relax.dist.") + kGroupedMatmul;
const std::string kDistCombine = std::string("relax.dist.") + kCombineTokens;
const std::string kLocalDispatch = std::string("relax.ccl.") + kDispatchTokens;
const std::string kLocalCombine = std::string("relax.ccl.") + kCombineTokens;

constexpr DLDataType kCounts{kDLInt, 64, 1};

// ---- reading calls, with what users wrote in errors

int64_t IntegerOf(const ir::Call& call, const char* key) {
  auto value = ir::GetAttr(call.attrs(), key).as<int64_t>();
  DISTIR_REQUIRE(value.has_value(), ValueError)
      << ir::CalleeName(call) << " needs attribute " << key << ", an integer";
  return *value;
}

bool BoolOf(const ir::Call& call, const char* key) {
  auto value = ir::GetAttr(call.attrs(), key).as<bool>();
  DISTIR_REQUIRE(value.has_value(), ValueError)
      << ir::CalleeName(call) << " needs attribute " << key << ", True or False";
  return *value;
}

DLDataType DtypeAttr(const ir::Call& call, DLDataType otherwise) {
  auto value = ir::GetAttr(call.attrs(), "out_dtype").as<ffi::String>();
  return value.has_value() ? ffi::StringToDLDataType(*value) : otherwise;
}

ir::DTensorType DTensorArg(const ir::Call& call, int index, int rank) {
  auto type = ir::DTensorType::Cast(call.args()[index].ty());
  DISTIR_REQUIRE(
      type.defined() && ir::HasKnownShape(type.tensor_ty()) && type.tensor_ty().ndim() == rank,
      TypeError)
      << ir::CalleeName(call) << " takes a DTensor of " << rank << " dimensions as argument "
      << index << ", got " << ir::Print(call.args()[index].ty());
  return type;
}

ir::TensorType TensorArg(const ir::Call& call, int index) {
  auto type = ir::TensorType::Cast(call.args()[index].ty());
  DISTIR_REQUIRE(type.defined() && ir::HasKnownShape(type) && type.ndim() > 0, TypeError)
      << ir::CalleeName(call) << " takes a Tensor of known shape as argument " << index << ", got "
      << ir::Print(call.args()[index].ty());
  return type;
}

void RequireIds(const ir::Call& call, const ir::TensorType& ids, const ir::Expr& rows) {
  const bool is_integer = ids.has_dtype() && ids.dtype().code == kDLInt && ids.dtype().lanes == 1 &&
                          (ids.dtype().bits == 32 || ids.dtype().bits == 64);
  DISTIR_REQUIRE(is_integer, TypeError)
      << ir::CalleeName(call) << ": ids are int32 or int64, got " << ir::Print(ids);
  DISTIR_REQUIRE(!rows.defined() || ir::SameDim(ir::ShapeOf(ids)[0], rows), ValueError)
      << ir::CalleeName(call) << ": the ids " << ir::Print(ids) << " are not as many as the rows";
}

// ---- placements along one dimension

ir::Placement WithoutOtherDims(const ir::Placement& placement) {
  std::vector<int> dims = PlacementDims(placement);
  for (int& dim : dims) dim = dim == 0 ? 0 : -1;
  return ir::MakePlacement(dims);
}

/*! \brief Devices along some axes, or along all that shard dimension 0. */
int64_t DevicesAlong(const ir::DTensorType& type, const std::vector<int>* axes) {
  const std::vector<int> dims = PlacementDims(type.placement());
  int64_t devices = 1;
  for (int axis = 0; axis < static_cast<int>(dims.size()); ++axis) {
    const bool counts = axes == nullptr
                            ? dims[axis] == 0
                            : std::find(axes->begin(), axes->end(), axis) != axes->end();
    if (counts) devices *= type.device_mesh().shape()[axis];
  }
  return devices;
}

void RequireSame(const ir::Call& call, const ir::DTensorType& ids, const ir::DTensorType& rows) {
  const bool same = ids.device_mesh().same_as(rows.device_mesh()) ||
                    ir::StructurallyEqual(ids.device_mesh(), rows.device_mesh());
  DISTIR_REQUIRE(same && SamePlacement(ids.placement(), WithoutOtherDims(rows.placement())),
                 ValueError)
      << ir::CalleeName(call) << ": rows are " << ir::Print(rows) << ", their ids "
      << ir::Print(ids) << "; both are sharded alike";
}

/*! \brief The expert axes, of which each shards the rows. */
std::vector<int> CheckedAxes(const ir::Call& call, const ir::DTensorType& rows) {
  const std::vector<int> axes = ExpertAxes(call);
  const std::vector<int> dims = PlacementDims(rows.placement());
  for (int axis : axes) {
    const bool is_axis = axis >= 0 && axis < static_cast<int>(dims.size());
    DISTIR_REQUIRE(is_axis && dims[axis] == 0, ValueError)
        << ir::CalleeName(call) << ": the rows " << ir::Print(rows)
        << " are not sharded along mesh axis " << axis << ", as the experts are";
  }
  DISTIR_REQUIRE(!axes.empty() && std::is_sorted(axes.begin(), axes.end()) &&
                     std::adjacent_find(axes.begin(), axes.end()) == axes.end(),
                 ValueError)
      << ir::CalleeName(call) << " needs expert_axes, axes of the mesh in its order";
  return axes;
}

int64_t ExpertsOfEach(const ir::Call& call, int64_t devices) {
  const int64_t experts = IntegerOf(call, "num_experts");
  DISTIR_REQUIRE(devices > 0 && experts > 0 && experts % devices == 0, ValueError)
      << ir::CalleeName(call) << ": " << experts << " experts do not divide into " << devices
      << " shards";
  return experts / devices;
}

// ---- type inference

ir::Type InferDispatch(const ir::Call& call) {
  const ir::DTensorType x = DTensorArg(call, 0, 2), ids = DTensorArg(call, 1, 1);
  const ffi::Array<ir::Expr> shape = ir::ShapeOf(x.tensor_ty());
  RequireIds(call, ids.tensor_ty(), shape[0]);
  RequireSame(call, ids, x);
  const std::vector<int> axes = CheckedAxes(call, x);
  const int64_t devices = DevicesAlong(x, &axes);
  const ir::TensorType rows =
      ir::MakeTensorType({ir::Multiply(shape[0], devices), shape[1]}, x.tensor_ty());
  const ir::TensorType counts = ir::MakeTensorType(
      {ir::MakeInt(DevicesAlong(x, nullptr) * devices), ir::MakeInt(ExpertsOfEach(call, devices))},
      kCounts);
  return ir::MakeTupleType(
      {ir::MakeDTensorType(rows, x.device_mesh(), x.placement()),
       ir::MakeDTensorType(counts, x.device_mesh(), WithoutOtherDims(x.placement()))});
}

ir::Type InferMatmul(const ir::Call& call) {
  const ir::DTensorType rows = DTensorArg(call, 0, 2), experts = DTensorArg(call, 1, 3);
  const int contracted = BoolOf(call, "transposed") ? 2 : 1, columns = 3 - contracted;
  const ffi::Array<ir::Expr> left = ir::ShapeOf(rows.tensor_ty());
  const ffi::Array<ir::Expr> right = ir::ShapeOf(experts.tensor_ty());
  DISTIR_REQUIRE(ir::SameDim(left[1], right[contracted]), ValueError)
      << ir::CalleeName(call) << ": the rows " << ir::Print(rows) << " do not fit the experts "
      << ir::Print(experts);
  std::vector<int> dims = PlacementDims(rows.placement());
  const std::vector<int> of_experts = PlacementDims(experts.placement());
  DISTIR_REQUIRE(dims.size() == of_experts.size(), ValueError)
      << ir::CalleeName(call) << ": the rows and the experts lie on different meshes";
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    DISTIR_REQUIRE((dims[axis] == 1) == (of_experts[axis] == contracted), ValueError)
        << ir::CalleeName(call) << " needs the contracted dimension sharded alike, got "
        << ir::Print(rows) << " and " << ir::Print(experts);
    if (dims[axis] == 1) dims[axis] = -1;
    if (of_experts[axis] == columns) dims[axis] = 1;
  }
  const ir::TensorType result =
      ir::MakeTensorType({left[0], right[columns]}, DtypeAttr(call, rows.tensor_ty().dtype()));
  return ir::MakeDTensorType(result, rows.device_mesh(), ir::MakePlacement(dims));
}

ir::Type InferCombine(const ir::Call& call) {
  const ir::DTensorType y = DTensorArg(call, 0, 2), ids = DTensorArg(call, 1, 1);
  DTensorArg(call, 2, 2);
  RequireIds(call, ids.tensor_ty(), ir::Expr());
  RequireSame(call, ids, y);
  CheckedAxes(call, y);
  const ir::TensorType result = ir::MakeTensorType(
      {ir::ShapeOf(ids.tensor_ty())[0], ir::ShapeOf(y.tensor_ty())[1]}, y.tensor_ty());
  return ir::MakeDTensorType(result, y.device_mesh(), y.placement());
}

int64_t GroupSize(const ir::Call& call) {
  auto groups = ir::GetAttr(call.attrs(), "groups").as<ffi::Array<ffi::Array<int64_t>>>();
  DISTIR_REQUIRE(groups.has_value() && !groups->empty(), ValueError)
      << ir::CalleeName(call) << " needs attribute groups, lists of device ids";
  return static_cast<int64_t>((*groups)[0].size());
}

ir::Type InferLocalDispatch(const ir::Call& call) {
  const ir::TensorType x = TensorArg(call, 0), ids = TensorArg(call, 1);
  ffi::Array<ir::Expr> shape = ir::ShapeOf(x);
  RequireIds(call, ids, shape[0]);
  const int64_t devices = GroupSize(call);
  shape.Set(0, ir::Multiply(shape[0], devices));
  return ir::MakeTupleType(
      {ir::MakeTensorType(shape, x),
       ir::MakeTensorType({ir::MakeInt(devices), ir::MakeInt(ExpertsOfEach(call, devices))},
                          kCounts)});
}

ir::Type InferLocalCombine(const ir::Call& call) {
  const ir::TensorType y = TensorArg(call, 0), ids = TensorArg(call, 1);
  RequireIds(call, ids, ir::Expr());
  GroupSize(call);
  ffi::Array<ir::Expr> shape = ir::ShapeOf(y);
  shape.Set(0, ir::ShapeOf(ids)[0]);
  return ir::MakeTensorType(shape, y);
}

ffi::Array<int64_t> AxesAttr(const std::vector<int>& axes) {
  ffi::Array<int64_t> all;
  for (int axis : axes) all.push_back(axis);
  return all;
}

/*! \brief A call with the type that its inference gives. */
ir::Call MakeTyped(ir::Type (*infer)(const ir::Call&), const std::string& name,
                   const ffi::Array<ir::Expr>& args,
                   const std::vector<std::pair<const char*, ffi::Any>>& attrs) {
  const ir::Call call = ir::MakeOpCall(ir::MakeTupleType({}), name.c_str(), args, attrs);
  return ir::MakeCall(infer(call), call.op(), args, call.attrs());
}

void Register(const std::string& name, const char* text, const std::vector<const char*>& arguments,
              ir::Type (*infer)(const ir::Call&)) {
  ir::RegisterOp(name, text, arguments, true);
  ir::SetInferType(name, infer);
  ir::SetInferDTensorType(name, infer);
}

const ir::OnLoad kRegister([] {
  const char* dispatches = "Sends rows to the devices of their experts.";
  const char* combines = "Brings rows back from the devices of their experts.";
  Register(kDistDispatch, dispatches, {"x", "ids"}, InferDispatch);
  Register(kDistMatmul, "Multiplies rows, ordered by expert, by the matrix of their expert.",
           {"rows", "experts", "counts"}, InferMatmul);
  Register(kDistCombine, combines, {"y", "ids", "counts"}, InferCombine);
  ir::RegisterOp(kLocalDispatch, dispatches, {"x", "ids"}, true);
  ir::SetInferType(kLocalDispatch, InferLocalDispatch);
  ir::RegisterOp(kLocalCombine, combines, {"y", "ids", "counts"}, true);
  ir::SetInferType(kLocalCombine, InferLocalCombine);
});

}  // namespace

bool MovesTokens(const ir::Expr& op) {
  return ir::IsOp(op, "relax.dist.dispatch_tokens") || ir::IsOp(op, "relax.dist.combine_tokens") ||
         ir::IsOp(op, "relax.dist.dispatch_slots") || ir::IsOp(op, "relax.dist.combine_slots");
}
bool MovesLocalTokens(const ir::Expr& op) {
  return ir::IsOp(op, "relax.ccl.dispatch_tokens") || ir::IsOp(op, "relax.ccl.combine_tokens") ||
         ir::IsOp(op, "relax.ccl.dispatch_slots") || ir::IsOp(op, "relax.ccl.combine_slots");
}
bool IsGroupedMatmul(const ir::Expr& op) { return ir::IsOp(op, "relax.dist.grouped_matmul"); }
bool IsOfTokens(const ir::Expr& op) { return MovesTokens(op) || IsGroupedMatmul(op); }

ir::Call MakeDispatchTokens(const ir::Expr& x, const ir::Expr& ids, int64_t num_experts,
                            const std::vector<int>& expert_axes) {
  return MakeTyped(InferDispatch, kDistDispatch, {x, ids},
                   {{"num_experts", num_experts}, {"expert_axes", AxesAttr(expert_axes)}});
}

ir::Call MakeGroupedMatmul(const ir::Expr& rows, const ir::Expr& experts, const ir::Expr& counts,
                           bool transposed, DLDataType dtype) {
  return MakeTyped(
      InferMatmul, kDistMatmul, {rows, experts, counts},
      {{"transposed", transposed}, {"out_dtype", ffi::String(ffi::DLDataTypeToString(dtype))}});
}

ir::Call MakeCombineTokens(const ir::Expr& y, const ir::Expr& ids, const ir::Expr& counts,
                           const std::vector<int>& expert_axes) {
  return MakeTyped(InferCombine, kDistCombine, {y, ids, counts},
                   {{"expert_axes", AxesAttr(expert_axes)}});
}

std::vector<int> ExpertAxes(const ir::Call& call) {
  auto list = ir::GetAttr(call.attrs(), "expert_axes").as<ffi::Array<int64_t>>();
  DISTIR_REQUIRE(list.has_value(), ValueError)
      << ir::CalleeName(call) << " needs attribute expert_axes, axes of the mesh";
  std::vector<int> axes;
  for (int64_t axis : *list) axes.push_back(static_cast<int>(axis));
  return axes;
}

ir::Call MakeLocalTokenCall(const ir::Call& call, const ir::Type& type,
                            const ffi::Array<ir::Expr>& args,
                            const ffi::Array<ffi::Array<int64_t>>& groups) {
  std::vector<std::pair<const char*, ffi::Any>> attrs = {{"groups", groups}};
  for (const char* key : {"num_experts", "choices"}) {
    const ffi::Any attr = ir::GetAttr(call.attrs(), key);
    if (attr != nullptr) attrs.emplace_back(key, attr);
  }
  const std::string name = ir::CalleeName(call).substr(std::string("relax.dist.").size());
  return ir::MakeOpCall(type, ("relax.ccl." + name).c_str(), args, attrs);
}

ir::Call MakeLocalGroupedMatmul(const ir::Call& call, const ir::Type& type,
                                const ffi::Array<ir::Expr>& args) {
  const ir::Expr callee = ir::MakeExternFunc(std::string("distir.runtime.") + kGroupedMatmul);
  const ir::Expr transposed = ir::MakeInt(BoolOf(call, "transposed") ? 1 : 0);
  const ir::Expr all = ir::MakeTuple({args[0], args[1], args[2], transposed});
  return ir::MakeOpCall(type, "relax.call_dps_packed", {callee, all}, {}, {type});
}

}  // namespace dialect
}  // namespace distir
