// Registers dispatch_slots and combine_slots on DTensors and on local tensors.
#include "dialect/operators/slot_exchange.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <string>

#include "dialect/operators/collective_record.h"
#include "dialect/operators/expert_calls.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

const std::string kDistDispatchSlots = abi::OnDTensors(abi::Collective::kDispatchSlots);
const std::string kDistCombineSlots = abi::OnDTensors(abi::Collective::kCombineSlots);

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

ir::Type InferDispatchSlots(const ir::Call& call) {
  const ir::DTensorType x = DTensorArg(call, 0, 2), mask = DTensorArg(call, 1, 2);
  RequireMesh(call, x, mask);
  RequireFits(call, x.tensor_ty(), mask.tensor_ty(), 0);
  const std::vector<int> axes = CheckedAxes(call, mask, "the tokens of the mask", "slots");
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

ir::Type InferCombineSlots(const ir::Call& call) {
  const ir::DTensorType y = DTensorArg(call, 0, 2), mask = DTensorArg(call, 1, 2);
  RequireMesh(call, y, mask);
  RequireFits(call, y.tensor_ty(), mask.tensor_ty(), 1);
  const std::vector<int> axes = CheckedAxes(call, mask, "the tokens of the mask", "slots");
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

ir::Type InferLocalDispatchSlots(const ir::Call& call) {
  const ir::TensorType x = TensorArg(call, 0, 2), mask = TensorArg(call, 1, 2);
  RequireFits(call, x, mask, 0);
  const int64_t slots = ir::StaticDim(ir::ShapeOf(mask)[1]), members = GroupSize(call);
  DISTIR_REQUIRE(slots > 0 && slots % members == 0, ValueError)
      << ir::CalleeName(call) << ": the slots of the mask " << ir::Print(mask)
      << " do not divide into " << members << " shards";
  return ir::MakeTensorType({ir::MakeInt(slots / members), ir::ShapeOf(x)[1]}, x);
}

ir::Type InferLocalCombineSlots(const ir::Call& call) {
  const ir::TensorType y = TensorArg(call, 0, 2), mask = TensorArg(call, 1, 2);
  GroupSize(call);
  return ir::MakeTensorType({ir::ShapeOf(mask)[0], ir::ShapeOf(y)[1]}, y);
}

const ir::OnLoad kRegisterSlotExchange([] {
  RegisterCollective(abi::Collective::kDispatchSlots, InferDispatchSlots, InferLocalDispatchSlots);
  RegisterCollective(abi::Collective::kCombineSlots, InferCombineSlots, InferLocalCombineSlots);
});

}  // namespace

ir::Call MakeDispatchSlots(const ir::Expr& x, const ir::Expr& mask,
                           const std::vector<int>& expert_axes, int64_t choices) {
  return MakeTyped(InferDispatchSlots, kDistDispatchSlots, {x, mask},
                   {{"expert_axes", AxesAttr(expert_axes)}, {"choices", choices}});
}

ir::Call MakeCombineSlots(const ir::Expr& y, const ir::Expr& mask,
                          const std::vector<int>& expert_axes, int64_t choices) {
  return MakeTyped(InferCombineSlots, kDistCombineSlots, {y, mask},
                   {{"expert_axes", AxesAttr(expert_axes)}, {"choices", choices}});
}

}  // namespace distir::dialect
