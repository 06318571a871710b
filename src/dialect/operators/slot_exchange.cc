#include "dialect/operators/slot_exchange.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <string>

#include "dialect/operators/token_dispatch.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "support/error.h"

namespace distir {
namespace dialect {

namespace {

const std::string kDistDispatch = std::string("relax.dist.") + kDispatchSlots;
const std::string kDistCombine = std::string("relax.dist.") + kCombineSlots;
const std::string kLocalDispatch = std::string("relax.ccl.") + kDispatchSlots;
const std::string kLocalCombine = std::string("relax.ccl.") + kCombineSlots;

ir::DTensorType MatrixArg(const ir::Call& call, int index) {
  auto type = ir::DTensorType::Cast(call.args()[index].ty());
  DISTIR_REQUIRE(
      type.defined() && ir::HasKnownShape(type.tensor_ty()) && type.tensor_ty().ndim() == 2,
      TypeError)
      << ir::CalleeName(call) << " takes a DTensor of 2 dimensions as argument " << index
      << ", got " << ir::Print(call.args()[index].ty());
  return type;
}

ir::TensorType LocalMatrixArg(const ir::Call& call, int index) {
  auto type = ir::TensorType::Cast(call.args()[index].ty());
  DISTIR_REQUIRE(type.defined() && ir::HasKnownShape(type) && type.ndim() == 2, TypeError)
      << ir::CalleeName(call) << " takes a Tensor of 2 dimensions as argument " << index << ", got "
      << ir::Print(call.args()[index].ty());
  return type;
}

void RequireFits(const ir::Call& call, const ir::TensorType& values, const ir::TensorType& mask,
                 int masked_dim) {
  DISTIR_REQUIRE(ir::SameDim(ir::ShapeOf(values)[0], ir::ShapeOf(mask)[masked_dim]), ValueError)
      << ir::CalleeName(call) << ": " << ir::Print(values) << " does not fit the mask "
      << ir::Print(mask);
  DISTIR_REQUIRE(
      values.has_dtype() && mask.has_dtype() && values.dtype().code == mask.dtype().code &&
          values.dtype().bits == mask.dtype().bits && values.dtype().lanes == mask.dtype().lanes,
      TypeError)
      << ir::CalleeName(call) << ": " << ir::Print(values) << " and the mask " << ir::Print(mask)
      << " are of different types";
}

/*! \brief The axes of slots, of which each shards the tokens. */
std::vector<int> CheckedAxes(const ir::Call& call, const ir::DTensorType& mask) {
  const std::vector<int> axes = ExpertAxes(call), dims = PlacementDims(mask.placement());
  for (int axis : axes) {
    DISTIR_REQUIRE(axis >= 0 && axis < static_cast<int>(dims.size()) && dims[axis] == 0, ValueError)
        << ir::CalleeName(call) << ": the tokens of the mask " << ir::Print(mask)
        << " are not sharded along mesh axis " << axis << ", as the slots are";
  }
  DISTIR_REQUIRE(!axes.empty() && std::is_sorted(axes.begin(), axes.end()) &&
                     std::adjacent_find(axes.begin(), axes.end()) == axes.end(),
                 ValueError)
      << ir::CalleeName(call) << " needs expert_axes, axes of the mesh in its order";
  return axes;
}

void RequireMesh(const ir::Call& call, const ir::DTensorType& values, const ir::DTensorType& mask) {
  DISTIR_REQUIRE(values.device_mesh().same_as(mask.device_mesh()) ||
                     ir::StructurallyEqual(values.device_mesh(), mask.device_mesh()),
                 ValueError)
      << ir::CalleeName(call) << ": " << ir::Print(values) << " and the mask " << ir::Print(mask)
      << " lie on different meshes";
}

/*! \brief Checks each axis: `of_mask` and `of_rows` say where the two shard dimension 0. */
void RequirePlaced(const ir::Call& call, bool holds, const ir::DTensorType& values,
                   const ir::DTensorType& mask) {
  DISTIR_REQUIRE(holds, ValueError)
      << ir::CalleeName(call) << ": " << ir::Print(values) << " and the mask " << ir::Print(mask)
      << " are not placed as its expert_axes say";
}

ir::Type InferDispatch(const ir::Call& call) {
  const ir::DTensorType x = MatrixArg(call, 0), mask = MatrixArg(call, 1);
  RequireMesh(call, x, mask);
  RequireFits(call, x.tensor_ty(), mask.tensor_ty(), 0);
  const std::vector<int> axes = CheckedAxes(call, mask);
  std::vector<int> dims = PlacementDims(x.placement());
  const std::vector<int> of_mask = PlacementDims(mask.placement());
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    RequirePlaced(call, of_mask[axis] != 1 && (dims[axis] == 0) == (of_mask[axis] == 0), x, mask);
    if (dims[axis] == 0 && std::find(axes.begin(), axes.end(), axis) == axes.end()) dims[axis] = -1;
  }
  const ir::TensorType result = ir::MakeTensorType(
      {ir::ShapeOf(mask.tensor_ty())[1], ir::ShapeOf(x.tensor_ty())[1]}, x.tensor_ty());
  return ir::MakeDTensorType(result, x.device_mesh(), ir::MakePlacement(dims));
}

ir::Type InferCombine(const ir::Call& call) {
  const ir::DTensorType y = MatrixArg(call, 0), mask = MatrixArg(call, 1);
  RequireMesh(call, y, mask);
  RequireFits(call, y.tensor_ty(), mask.tensor_ty(), 1);
  const std::vector<int> axes = CheckedAxes(call, mask);
  std::vector<int> dims = PlacementDims(y.placement());
  const std::vector<int> of_mask = PlacementDims(mask.placement());
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const bool is_of_slots = std::find(axes.begin(), axes.end(), axis) != axes.end();
    RequirePlaced(call,
                  of_mask[axis] != 1 && (dims[axis] == 0) == is_of_slots &&
                      !(dims[axis] == 1 && of_mask[axis] == 0),
                  y, mask);
    if (of_mask[axis] == 0) dims[axis] = 0;
  }
  const ir::TensorType result = ir::MakeTensorType(
      {ir::ShapeOf(mask.tensor_ty())[0], ir::ShapeOf(y.tensor_ty())[1]}, y.tensor_ty());
  return ir::MakeDTensorType(result, y.device_mesh(), ir::MakePlacement(dims));
}

int64_t GroupSize(const ir::Call& call) {
  auto groups = ir::GetAttr(call.attrs(), "groups").as<ffi::Array<ffi::Array<int64_t>>>();
  DISTIR_REQUIRE(groups.has_value() && !groups->empty(), ValueError)
      << ir::CalleeName(call) << " needs attribute groups, lists of device ids";
  return static_cast<int64_t>((*groups)[0].size());
}

ir::Type InferLocalDispatch(const ir::Call& call) {
  const ir::TensorType x = LocalMatrixArg(call, 0), mask = LocalMatrixArg(call, 1);
  RequireFits(call, x, mask, 0);
  const int64_t slots = ir::StaticDim(ir::ShapeOf(mask)[1]), members = GroupSize(call);
  DISTIR_REQUIRE(slots > 0 && slots % members == 0, ValueError)
      << ir::CalleeName(call) << ": the slots of the mask " << ir::Print(mask)
      << " do not divide into " << members << " shards";
  return ir::MakeTensorType({ir::MakeInt(slots / members), ir::ShapeOf(x)[1]}, x);
}

ir::Type InferLocalCombine(const ir::Call& call) {
  const ir::TensorType y = LocalMatrixArg(call, 0), mask = LocalMatrixArg(call, 1);
  GroupSize(call);
  return ir::MakeTensorType({ir::ShapeOf(mask)[0], ir::ShapeOf(y)[1]}, y);
}

void Register(const std::string& dist, const std::string& local, const char* text,
              const std::vector<const char*>& arguments, ir::Type (*infer)(const ir::Call&),
              ir::Type (*infer_local)(const ir::Call&)) {
  ir::RegisterOp(dist, text, arguments, true);
  ir::SetInferType(dist, infer);
  ir::SetInferDTensorType(dist, infer);
  ir::RegisterOp(local, text, arguments, true);
  ir::SetInferType(local, infer_local);
}

const ir::OnLoad kRegister([] {
  Register(kDistDispatch, kLocalDispatch, "Sends rows of tokens to the slots that they are in.",
           {"x", "mask"}, InferDispatch, InferLocalDispatch);
  Register(kDistCombine, kLocalCombine, "Brings the rows of slots back to the tokens in them.",
           {"y", "mask"}, InferCombine, InferLocalCombine);
});

ir::Call MakeTyped(ir::Type (*infer)(const ir::Call&), const std::string& name,
                   const ffi::Array<ir::Expr>& args, const std::vector<int>& expert_axes,
                   int64_t choices) {
  ffi::Array<int64_t> axes;
  for (int axis : expert_axes) axes.push_back(axis);
  const ir::Call call = ir::MakeOpCall(ir::MakeTupleType({}), name.c_str(), args,
                                       {{"expert_axes", axes}, {"choices", choices}});
  return ir::MakeCall(infer(call), call.op(), args, call.attrs());
}

}  // namespace

ir::Call MakeDispatchSlots(const ir::Expr& x, const ir::Expr& mask,
                           const std::vector<int>& expert_axes, int64_t choices) {
  return MakeTyped(InferDispatch, kDistDispatch, {x, mask}, expert_axes, choices);
}

ir::Call MakeCombineSlots(const ir::Expr& y, const ir::Expr& mask,
                          const std::vector<int>& expert_axes, int64_t choices) {
  return MakeTyped(InferCombine, kDistCombine, {y, mask}, expert_axes, choices);
}

}  // namespace dialect
}  // namespace distir
