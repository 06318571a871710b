// Registers dispatch_tokens, grouped_matmul, combine_tokens and their local forms.
#include "dialect/operators/token_dispatch.h"

#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <string>

#include "dialect/operators/collective_record.h"
#include "dialect/operators/expert_calls.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "support/dtypes.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

const std::string kDistDispatch = abi::OnDTensors(abi::Collective::kDispatchTokens);
const std::string kDistMatmul = abi::OnDTensors(abi::Collective::kGroupedMatmul);
const std::string kDistCombine = abi::OnDTensors(abi::Collective::kCombineTokens);
const std::string kDistSelect = abi::OnDTensors(abi::Collective::kSelectTokens);
const std::string kDistPlace = abi::OnDTensors(abi::Collective::kPlaceTokens);
const std::string kLocalDispatch = abi::OnTensors(abi::Collective::kDispatchTokens);
const std::string kLocalCombine = abi::OnTensors(abi::Collective::kCombineTokens);

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

int64_t ExpertsOfEach(const ir::Call& call, int64_t devices) {
  const int64_t experts = IntegerOf(call, "num_experts");
  DISTIR_REQUIRE(devices > 0 && experts > 0 && experts % devices == 0, ValueError)
      << ir::CalleeName(call) << ": " << experts << " experts do not divide into " << devices
      << " shards";
  return experts / devices;
}

// ---- type inference

/*! \brief Room for the rows (N, D) of all devices along the axes, and counts, placed so. */
ir::Type RowsAndCounts(const ir::Call& call, const ir::DTensorType& x,
                       const ir::Placement& placement, const std::vector<int>& axes) {
  const ffi::Array<ir::Expr> shape = ir::ShapeOf(x.tensor_ty());
  const int64_t devices = DevicesAlong(x, &axes);
  const ir::DTensorType rows = ir::MakeDTensorType(
      ir::MakeTensorType({ir::Multiply(shape[0], devices), shape[1]}, x.tensor_ty()),
      x.device_mesh(), placement);
  const ir::TensorType counts =
      ir::MakeTensorType({ir::MakeInt(DevicesAlong(rows, nullptr) * devices),
                          ir::MakeInt(ExpertsOfEach(call, devices))},
                         kInt64);
  return ir::MakeTupleType(
      {rows, ir::MakeDTensorType(counts, x.device_mesh(), WithoutOtherDims(placement))});
}

ir::Type InferDispatch(const ir::Call& call) {
  const ir::DTensorType x = DTensorArg(call, 0, 2), ids = DTensorArg(call, 1, 1);
  RequireIds(call, ids.tensor_ty(), ir::ShapeOf(x.tensor_ty())[0]);
  RequireSame(call, ids, x);
  return RowsAndCounts(call, x, x.placement(), CheckedAxes(call, x, "the rows", "experts"));
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
  CheckedAxes(call, y, "the rows", "experts");
  const ir::TensorType result = ir::MakeTensorType(
      {ir::ShapeOf(ids.tensor_ty())[0], ir::ShapeOf(y.tensor_ty())[1]}, y.tensor_ty());
  return ir::MakeDTensorType(result, y.device_mesh(), y.placement());
}

/*! \brief The expert axes, which shard no rows but the list of each device's first expert. */
std::vector<int> AxesOfCopies(const ir::Call& call, const ir::DTensorType& rows,
                              const ir::DTensorType& first) {
  const std::vector<int> axes = CheckedAxes(call, first, "the first experts", "experts");
  const std::vector<int> dims = PlacementDims(rows.placement());
  for (int axis : axes) {
    DISTIR_REQUIRE(dims[axis] < 0, ValueError)
        << ir::CalleeName(call) << ": the rows " << ir::Print(rows)
        << " are sharded along mesh axis " << axis << ", along which the experts are";
  }
  DISTIR_REQUIRE(ir::StaticDim(ir::ShapeOf(first.tensor_ty())[0]) == DevicesAlong(first, &axes) &&
                     DevicesAlong(first, nullptr) == DevicesAlong(first, &axes),
                 ValueError)
      << ir::CalleeName(call) << " needs one first expert of each device, got " << ir::Print(first);
  return axes;
}

ir::Placement AlongToo(const ir::Placement& placement, const std::vector<int>& axes, int dim) {
  std::vector<int> dims = PlacementDims(placement);
  for (int axis : axes) dims[axis] = dim;
  return ir::MakePlacement(dims);
}

ir::Type InferSelect(const ir::Call& call) {
  const ir::DTensorType x = DTensorArg(call, 0, 2), ids = DTensorArg(call, 1, 1);
  const std::vector<int> axes = AxesOfCopies(call, x, DTensorArg(call, 2, 1));
  RequireIds(call, ids.tensor_ty(), ir::ShapeOf(x.tensor_ty())[0]);
  RequireSame(call, ids, x);
  const ir::Placement placement = AlongToo(x.placement(), axes, 0);
  return RowsAndCounts(call, x, placement, axes);
}

ir::Type InferPlace(const ir::Call& call) {
  const ir::DTensorType y = DTensorArg(call, 0, 2), ids = DTensorArg(call, 1, 1);
  DTensorArg(call, 2, 2);
  RequireIds(call, ids.tensor_ty(), ir::Expr());
  const std::vector<int> axes = AxesOfCopies(call, ids, DTensorArg(call, 3, 1));
  CheckedAxes(call, y, "the rows", "experts");
  const ir::DTensorType result = ir::MakeDTensorType(
      ir::MakeTensorType({ir::ShapeOf(ids.tensor_ty())[0], ir::ShapeOf(y.tensor_ty())[1]},
                         y.tensor_ty()),
      y.device_mesh(), AlongToo(y.placement(), axes, -1));
  RequireSame(call, ids, result);
  return result;
}

ir::Type InferLocalDispatch(const ir::Call& call) {
  const ir::TensorType x = TensorArg(call, 0, 2), ids = TensorArg(call, 1, 1);
  ffi::Array<ir::Expr> shape = ir::ShapeOf(x);
  RequireIds(call, ids, shape[0]);
  const int64_t devices = GroupSize(call);
  shape.Set(0, ir::Multiply(shape[0], devices));
  return ir::MakeTupleType(
      {ir::MakeTensorType(shape, x),
       ir::MakeTensorType({ir::MakeInt(devices), ir::MakeInt(ExpertsOfEach(call, devices))},
                          kInt64)});
}

ir::Type InferLocalCombine(const ir::Call& call) {
  const ir::TensorType y = TensorArg(call, 0, 2), ids = TensorArg(call, 1, 1);
  RequireIds(call, ids, ir::Expr());
  GroupSize(call);
  ffi::Array<ir::Expr> shape = ir::ShapeOf(y);
  shape.Set(0, ir::ShapeOf(ids)[0]);
  return ir::MakeTensorType(shape, y);
}

const ir::OnLoad kRegisterTokenDispatch([] {
  RegisterCollective(abi::Collective::kDispatchTokens, InferDispatch, InferLocalDispatch);
  RegisterCollective(abi::Collective::kGroupedMatmul, InferMatmul);
  RegisterCollective(abi::Collective::kCombineTokens, InferCombine, InferLocalCombine);
  RegisterCollective(abi::Collective::kSelectTokens, InferSelect);
  RegisterCollective(abi::Collective::kPlaceTokens, InferPlace);
});

}  // namespace

namespace {

bool IsOf(const abi::CollectiveRecord* record, abi::CollectiveFamily family) {
  return record != nullptr && record->family == family;
}

}  // namespace

bool MovesTokens(const ir::Expr& op) {
  return IsOf(RecordOnDTensors(op), abi::CollectiveFamily::kRows);
}
bool MovesLocalTokens(const ir::Expr& op) {
  return IsOf(RecordOnTensors(op), abi::CollectiveFamily::kRows);
}
bool IsTokenKernel(const ir::Expr& op) {
  return IsOf(RecordOnDTensors(op), abi::CollectiveFamily::kKernel);
}
bool IsOfTokens(const ir::Expr& op) { return MovesTokens(op) || IsTokenKernel(op); }

ir::Call MakeDispatchTokens(const ir::Expr& x, const ir::Expr& ids, int64_t num_experts,
                            const std::vector<int>& expert_axes) {
  return MakeTyped(InferDispatch, kDistDispatch, {x, ids},
                   {{"num_experts", num_experts}, {"expert_axes", AxesAttr(expert_axes)}});
}

ir::Call MakeGroupedMatmul(const ir::Expr& rows, const ir::Expr& experts, const ir::Expr& counts,
                           bool transposed, DLDataType dtype, double room) {
  return MakeTyped(InferMatmul, kDistMatmul, {rows, experts, counts},
                   {{"transposed", transposed},
                    {"out_dtype", ffi::String(ffi::DLDataTypeToString(dtype))},
                    {"room", room}});
}

ir::Call MakeCombineTokens(const ir::Expr& y, const ir::Expr& ids, const ir::Expr& counts,
                           const std::vector<int>& expert_axes) {
  return MakeTyped(InferCombine, kDistCombine, {y, ids, counts},
                   {{"expert_axes", AxesAttr(expert_axes)}});
}

ir::Call MakeSelectTokens(const ir::Expr& x, const ir::Expr& ids, const ir::Expr& first,
                          int64_t num_experts, const std::vector<int>& expert_axes) {
  return MakeTyped(InferSelect, kDistSelect, {x, ids, first},
                   {{"num_experts", num_experts}, {"expert_axes", AxesAttr(expert_axes)}});
}

ir::Call MakePlaceTokens(const ir::Expr& y, const ir::Expr& ids, const ir::Expr& counts,
                         const ir::Expr& first, const std::vector<int>& expert_axes) {
  return MakeTyped(InferPlace, kDistPlace, {y, ids, counts, first},
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
                            const ir::NodeArray<ir::Expr>& args,
                            const ffi::Array<ffi::Array<int64_t>>& groups) {
  std::vector<std::pair<const char*, ffi::Any>> attrs = {{"groups", groups}};
  for (const char* key : {"num_experts", "choices"}) {
    const ffi::Any attr = ir::GetAttr(call.attrs(), key);
    if (attr != nullptr) attrs.emplace_back(key, attr);
  }
  const std::string name = abi::OnTensors(RecordOnDTensors(call.op())->collective);
  return ir::MakeOpCall(type, name.c_str(), args, attrs);
}

ir::Call MakeLocalTokenKernel(const ir::Call& call, const ir::Type& type,
                              const ir::NodeArray<ir::Expr>& args) {
  const abi::Collective kernel = RecordOnDTensors(call.op())->collective;
  ffi::Array<ir::Expr> all = args;
  if (kernel == abi::Collective::kGroupedMatmul) {
    all.push_back(ir::MakeInt(BoolOf(call, "transposed") ? 1 : 0));
    all.push_back(ir::MakeFloat(ir::GetAttr(call.attrs(), "room").as<double>().value_or(1)));
  }
  return ir::MakeOpCall(type, "relax.call_dps_packed",
                        {ir::MakeExternFunc(abi::Builtin(kernel)), ir::MakeTuple(all)}, {}, {type});
}

}  // namespace distir::dialect
