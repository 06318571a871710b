// Reads and checks attributes and arguments of the operators of experts, and makes their calls.
#include "dialect/operators/expert_calls.h"

#include <algorithm>

#include "dialect/operators/token_dispatch.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "support/error.h"

namespace distir::dialect {

ir::Call MakeTyped(InferFunction infer, const std::string& name,
                   const ir::NodeArray<ir::Expr>& args,
                   const std::vector<std::pair<const char*, ffi::Any>>& attrs) {
  const ir::Call call = ir::MakeOpCall(ir::MakeTupleType({}), name.c_str(), args, attrs);
  return ir::MakeCall(infer(call), call.op(), args, call.attrs());
}

ffi::Array<int64_t> AxesAttr(const std::vector<int>& axes) {
  ffi::Array<int64_t> all;
  for (int axis : axes) all.push_back(axis);
  return all;
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

ir::TensorType TensorArg(const ir::Call& call, int index, int rank) {
  auto type = ir::TensorType::Cast(call.args()[index].ty());
  DISTIR_REQUIRE(type.defined() && ir::HasKnownShape(type) && type.ndim() == rank, TypeError)
      << ir::CalleeName(call) << " takes a Tensor of " << rank << " dimensions as argument "
      << index << ", got " << ir::Print(call.args()[index].ty());
  return type;
}

std::vector<int> CheckedAxes(const ir::Call& call, const ir::DTensorType& tensor, const char* what,
                             const char* experts) {
  const std::vector<int> axes = ExpertAxes(call), dims = PlacementDims(tensor.placement());
  for (int axis : axes) {
    DISTIR_REQUIRE(axis >= 0 && axis < static_cast<int>(dims.size()) && dims[axis] == 0, ValueError)
        << ir::CalleeName(call) << ": " << what << " " << ir::Print(tensor)
        << " are not sharded along mesh axis " << axis << ", as the " << experts << " are";
  }
  DISTIR_REQUIRE(!axes.empty() && std::is_sorted(axes.begin(), axes.end()) &&
                     std::adjacent_find(axes.begin(), axes.end()) == axes.end(),
                 ValueError)
      << ir::CalleeName(call) << " needs expert_axes, axes of the mesh in its order";
  return axes;
}

int64_t GroupSize(const ir::Call& call) {
  auto groups = ir::GetAttr(call.attrs(), "groups").as<ffi::Array<ffi::Array<int64_t>>>();
  DISTIR_REQUIRE(groups.has_value() && !groups->empty(), ValueError)
      << ir::CalleeName(call) << " needs attribute groups, lists of device ids";
  return static_cast<int64_t>((*groups)[0].size());
}

}  // namespace distir::dialect
