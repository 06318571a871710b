// Registers the operators that select, move and place pairs of a token and an expert.
#include "dialect/operators/pair_selection.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <string>

#include "dialect/operators/collective_record.h"
#include "dialect/operators/expert_calls.h"
#include "dialect/operators/token_dispatch.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "support/dtypes.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

const std::string kDistSelectPairs = abi::OnDTensors(abi::Collective::kSelectPairs);
const std::string kDistPlacePairs = abi::OnDTensors(abi::Collective::kPlacePairs);
const std::string kDistGather = abi::OnDTensors(abi::Collective::kGatherRows);
const std::string kDistScatter = abi::OnDTensors(abi::Collective::kScatterRows);

// ---- what is asked of arguments

void RequireWeights(const ir::Call& call, const ir::TensorType& weights) {
  const bool is_float = weights.has_dtype() && weights.dtype().lanes == 1 &&
                        (weights.dtype().code == kDLFloat || weights.dtype().code == kDLBfloat);
  DISTIR_REQUIRE(is_float, TypeError)
      << ir::CalleeName(call) << ": weights are floats, got " << ir::Print(weights);
}

void RequireFits(const ir::Call& call, bool fits, const ir::Type& rows, const ir::Type& weights) {
  DISTIR_REQUIRE(fits, ValueError) << ir::CalleeName(call) << ": " << ir::Print(rows)
                                   << " does not fit the weights " << ir::Print(weights);
}

void RequirePlaced(const ir::Call& call, bool holds, const ir::Type& rows,
                   const ir::Type& weights) {
  DISTIR_REQUIRE(holds, ValueError)
      << ir::CalleeName(call) << ": " << ir::Print(rows) << " and the weights "
      << ir::Print(weights) << " are not placed as each other";
}

ir::DTensorType Weights(const ir::Call& call, const ir::DTensorType& rows) {
  const ir::DTensorType weights = DTensorArg(call, 1, 2);
  RequireWeights(call, weights.tensor_ty());
  DISTIR_REQUIRE(rows.device_mesh().same_as(weights.device_mesh()) ||
                     ir::StructurallyEqual(rows.device_mesh(), weights.device_mesh()),
                 ValueError)
      << ir::CalleeName(call) << ": " << ir::Print(rows) << " and the weights "
      << ir::Print(weights) << " lie on different meshes";
  return weights;
}

/*! \brief The expert axes, which are all that shard the experts of the weights. Those that shard
 * their tokens, too, come before: blocks of tokens are apart then. */
std::vector<int> AxesOfExperts(const ir::Call& call, const ir::DTensorType& weights) {
  const std::vector<int> axes = ExpertAxes(call), dims = PlacementDims(weights.placement());
  bool holds = !axes.empty() && std::is_sorted(axes.begin(), axes.end()) &&
               std::adjacent_find(axes.begin(), axes.end()) == axes.end();
  for (int axis = 0; axis < static_cast<int>(dims.size()); ++axis) {
    const bool is_listed = std::find(axes.begin(), axes.end(), axis) != axes.end();
    holds = holds && (dims[axis] == 1) == is_listed && (dims[axis] != 0 || axis < axes.front());
  }
  DISTIR_REQUIRE(holds, ValueError)
      << ir::CalleeName(call) << " needs expert_axes, the axes of the mesh, in its order, along "
      << "which the experts of the weights " << ir::Print(weights)
      << " are, behind those along which tokens are";
  return axes;
}

// ---- type inference

ir::Type InferSelectPairs(const ir::Call& call) {
  const ir::DTensorType x = DTensorArg(call, 0, 3), weights = Weights(call, x);
  const ffi::Array<ir::Expr> of_x = ir::ShapeOf(x.tensor_ty());
  const ffi::Array<ir::Expr> of_weights = ir::ShapeOf(weights.tensor_ty());
  std::vector<int> dims = PlacementDims(x.placement());
  const std::vector<int> sharded = PlacementDims(weights.placement());
  int64_t devices = 1, of_experts = 1;
  for (int d : {0, 1}) {
    const bool is_alike = ir::StaticDim(of_x[d]) == 1;
    RequireFits(call, is_alike || ir::SameDim(of_x[d], of_weights[d]), x, weights);
    for (size_t axis = 0; axis < dims.size(); ++axis)
      RequirePlaced(call, (dims[axis] == d) == (sharded[axis] == d && !is_alike), x, weights);
  }
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    RequirePlaced(call, dims[axis] != 2 || sharded[axis] < 0, x, weights);
    if (sharded[axis] < 0) continue;
    dims[axis] = 0;
    devices *= x.device_mesh().shape()[axis];
    if (sharded[axis] == 1) of_experts *= x.device_mesh().shape()[axis];
  }
  for (int& dim : dims) dim = dim == 2 ? 1 : dim;
  const int64_t experts = ir::StaticDim(of_weights[1]);
  DISTIR_REQUIRE(experts > 0 && experts % of_experts == 0, ValueError)
      << ir::CalleeName(call) << ": the experts of the weights " << ir::Print(weights)
      << " do not divide into " << of_experts << " shards";
  const ir::TensorType rows =
      ir::MakeTensorType({ir::Multiply(of_weights[0], experts), of_x[2]}, x.tensor_ty());
  const ir::TensorType counts =
      ir::MakeTensorType({ir::MakeInt(devices), ir::MakeInt(experts / of_experts)}, kInt64);
  std::vector<int> of_counts = dims;
  for (int& dim : of_counts) dim = dim == 0 ? 0 : -1;
  return ir::MakeTupleType(
      {ir::MakeDTensorType(rows, x.device_mesh(), ir::MakePlacement(dims)),
       ir::MakeDTensorType(counts, x.device_mesh(), ir::MakePlacement(of_counts))});
}

ir::Type InferPlacePairs(const ir::Call& call) {
  const ir::DTensorType rows = DTensorArg(call, 0, 2), weights = Weights(call, rows);
  const ffi::Array<ir::Expr> of_rows = ir::ShapeOf(rows.tensor_ty());
  const ffi::Array<ir::Expr> of_weights = ir::ShapeOf(weights.tensor_ty());
  const int64_t experts = ir::StaticDim(of_weights[1]);
  RequireFits(call, experts > 0 && ir::SameDim(of_rows[0], ir::Multiply(of_weights[0], experts)),
              rows, weights);
  std::vector<int> dims = PlacementDims(rows.placement());
  const std::vector<int> sharded = PlacementDims(weights.placement());
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    RequirePlaced(call, (dims[axis] == 0) == (sharded[axis] >= 0), rows, weights);
    if (sharded[axis] >= 0) dims[axis] = sharded[axis] == 0 ? 0 : -1;
  }
  return ir::MakeDTensorType(ir::MakeTensorType({of_weights[0], of_rows[1]}, rows.tensor_ty()),
                             rows.device_mesh(), ir::MakePlacement(dims));
}

/*! \brief Both collectives. \param gathers Else it scatters. */
ir::Type InferMoved(const ir::Call& call, bool gathers) {
  const ir::DTensorType x = DTensorArg(call, 0, 2), weights = Weights(call, x);
  RequireFits(call, ir::SameDim(ir::ShapeOf(x.tensor_ty())[0], ir::ShapeOf(weights.tensor_ty())[0]),
              x, weights);
  const std::vector<int> axes = AxesOfExperts(call, weights);
  std::vector<int> dims = PlacementDims(x.placement());
  const std::vector<int> sharded = PlacementDims(weights.placement());
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    const bool is_of_experts = sharded[axis] == 1;
    RequirePlaced(call, (dims[axis] == 0) == (sharded[axis] == 0 || (gathers && is_of_experts)), x,
                  weights);
    RequirePlaced(call, dims[axis] != 1 || !is_of_experts, x, weights);
    if (is_of_experts) dims[axis] = gathers ? -1 : 0;
  }
  return ir::MakeDTensorType(x.tensor_ty(), x.device_mesh(), ir::MakePlacement(dims));
}
ir::Type InferGather(const ir::Call& call) { return InferMoved(call, true); }
ir::Type InferScatter(const ir::Call& call) { return InferMoved(call, false); }

ir::Type InferLocalGather(const ir::Call& call) {
  const ir::TensorType x = TensorArg(call, 0, 2), weights = TensorArg(call, 1, 2);
  RequireWeights(call, weights);
  const ir::Expr tokens = ir::ShapeOf(weights)[0];
  RequireFits(call, ir::SameDim(ir::Multiply(ir::ShapeOf(x)[0], GroupSize(call)), tokens), x,
              weights);
  return ir::MakeTensorType({tokens, ir::ShapeOf(x)[1]}, x);
}

ir::Type InferLocalScatter(const ir::Call& call) {
  const ir::TensorType x = TensorArg(call, 0, 2), weights = TensorArg(call, 1, 2);
  RequireWeights(call, weights);
  const ffi::Array<ir::Expr> shape = ir::ShapeOf(x);
  RequireFits(call, ir::SameDim(shape[0], ir::ShapeOf(weights)[0]), x, weights);
  const int64_t members = GroupSize(call), tokens = ir::StaticDim(shape[0]);
  DISTIR_REQUIRE(tokens < 0 || tokens % members == 0, ValueError)
      << ir::CalleeName(call) << ": the tokens " << ir::Print(x) << " do not divide into "
      << members << " shards";
  return ir::MakeTensorType({ir::FloorDivide(shape[0], members), shape[1]}, x);
}

const ir::OnLoad kRegisterPairSelection([] {
  RegisterCollective(abi::Collective::kSelectPairs, InferSelectPairs);
  RegisterCollective(abi::Collective::kPlacePairs, InferPlacePairs);
  RegisterCollective(abi::Collective::kGatherRows, InferGather, InferLocalGather);
  RegisterCollective(abi::Collective::kScatterRows, InferScatter, InferLocalScatter);
});

}  // namespace

ir::Call MakeSelectPairs(const ir::Expr& x, const ir::Expr& weights) {
  return MakeTyped(InferSelectPairs, kDistSelectPairs, {x, weights}, {});
}

ir::Call MakePlacePairs(const ir::Expr& rows, const ir::Expr& weights) {
  return MakeTyped(InferPlacePairs, kDistPlacePairs, {rows, weights}, {});
}

ir::Call MakeGatherRows(const ir::Expr& x, const ir::Expr& weights,
                        const std::vector<int>& expert_axes, int64_t choices) {
  return MakeTyped(InferGather, kDistGather, {x, weights},
                   {{"expert_axes", AxesAttr(expert_axes)}, {"choices", choices}});
}

ir::Call MakeScatterRows(const ir::Expr& x, const ir::Expr& weights,
                         const std::vector<int>& expert_axes, int64_t choices) {
  return MakeTyped(InferScatter, kDistScatter, {x, weights},
                   {{"expert_axes", AxesAttr(expert_axes)}, {"choices", choices}});
}

}  // namespace distir::dialect
