// Registers all_reduce_add_rms_norm on DTensors and on local tensors.
#include "dialect/operators/fused_norm.h"

#include <tvm/ffi/error.h>

#include <string>

#include "dialect/mesh_table.h"
#include "dialect/operators/collective.h"
#include "dialect/operators/collective_record.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

const std::string kNormOnDTensors = abi::OnDTensors(abi::Collective::kAllReduceAddRmsNorm);
const std::string kNormOnTensors = abi::OnTensors(abi::Collective::kAllReduceAddRmsNorm);

}  // namespace

bool IsFusedNorm(const ir::Expr& op) {
  return IsOnDTensors(op, abi::Collective::kAllReduceAddRmsNorm);
}
bool IsLocalFusedNorm(const ir::Expr& op) {
  return IsOnTensors(op, abi::Collective::kAllReduceAddRmsNorm);
}

bool HasFusedNorm(const ir::TensorType& type) {
  DLDataType dtype = type.dtype();
  if (dtype.lanes != 1 || type.ndim() < 1) return false;
  return (dtype.code == kDLFloat && (dtype.bits == 32 || dtype.bits == 16)) ||
         (dtype.code == kDLBfloat && dtype.bits == 16);
}

ir::Call MakeFusedNorm(const ir::Expr& x, const ir::Expr& residual, const ir::Expr& weight,
                       const ir::DTensorType& target, const std::vector<int>& reduce_axes,
                       double epsilon) {
  ffi::Array<int64_t> axes;
  for (int axis : reduce_axes) axes.push_back(axis);
  return ir::MakeOpCall(ir::MakeTupleType({target, target}), kNormOnDTensors.c_str(),
                        {x, residual, weight},
                        {{"device_mesh", target.device_mesh()},
                         {"placement", target.placement()},
                         {"reduce_axes", axes},
                         {"reduction", ffi::String(mesh::ReductionName(mesh::Reduction::kSum))},
                         {"epsilon", epsilon}});
}

ir::Call MakeLocalFusedNorm(const ir::NodeArray<ir::Expr>& args, const ir::Type& type,
                            const ffi::Array<ffi::Array<int64_t>>& groups, double epsilon) {
  return ir::MakeOpCall(type, kNormOnTensors.c_str(), args,
                        {{"groups", groups}, {"epsilon", epsilon}});
}

double EpsilonOf(const ir::Call& call) {
  auto value = ir::GetAttr(call.attrs(), "epsilon").as<double>();
  DISTIR_REQUIRE(value.has_value(), ValueError)
      << ir::CalleeName(call) << " needs attribute epsilon, a number";
  return *value;
}

namespace {

/*! \brief Refuses what cannot be normed together. */
void CheckTensors(const ir::Call& call, const ir::TensorType& x, const ir::TensorType& residual,
                  const ir::TensorType& weight) {
  std::string name = ir::CalleeName(call);
  EpsilonOf(call);
  DISTIR_REQUIRE(x.defined() && residual.defined() && weight.defined(), TypeError)
      << name << " takes three tensors of one kind, x, residual and weight";
  DISTIR_REQUIRE(HasFusedNorm(x), TypeError)
      << name << " takes float32, float16 or bfloat16 of at least one dimension, got "
      << ir::Print(x);
  DISTIR_REQUIRE(ir::StructurallyEqual(x, residual), TypeError)
      << name << ": x is " << ir::Print(x) << ", residual is " << ir::Print(residual);
  bool fits = weight.ndim() == 1 && ir::HasKnownShape(x) && ir::HasKnownShape(weight) &&
              weight.dtype() == x.dtype() &&
              ir::StructurallyEqual(ir::ShapeOf(weight)[0], ir::ShapeOf(x)[x.ndim() - 1]);
  DISTIR_REQUIRE(fits, TypeError) << name << ": the weight " << ir::Print(weight)
                                  << " is not as long as the last dimension of " << ir::Print(x);
}

ir::TensorType TensorOf(const ir::Expr& expr) {
  auto dtensor = ir::DTensorType::Cast(expr.ty());
  return dtensor.defined() ? dtensor.tensor_ty() : ir::TensorType();
}

ir::Type InferFusedNorm(const ir::Call& call) {
  const ir::NodeArray<ir::Expr>& args = call.args();
  CheckTensors(call, TensorOf(args[0]), TensorOf(args[1]), TensorOf(args[2]));
  ir::Type target = InferCollective(call, CollectiveKind::kAllReduce, args[0].ty());
  std::string name = ir::CalleeName(call);
  DISTIR_REQUIRE(ReductionOf(call) == mesh::Reduction::kSum, ValueError)
      << name << " is a sum, got reduction \"" << mesh::ReductionName(ReductionOf(call)) << "\"";
  DISTIR_REQUIRE(ir::StructurallyEqual(args[1].ty(), target), ValueError)
      << name << ": the residual is " << ir::Print(args[1].ty()) << ", the sum is "
      << ir::Print(target);
  MeshTable table;
  const mesh::Sharding& result = table.ShardingOf(ir::DTensorType::Cast(target));
  const mesh::Sharding& weight = table.ShardingOf(ir::DTensorType::Cast(args[2].ty()));
  DISTIR_REQUIRE(result.dims.back().empty() && weight.IsReplicated(), ValueError)
      << name << " needs the last dimension whole, got " << ir::Print(target) << " and the weight "
      << ir::Print(args[2].ty());
  return ir::MakeTupleType({target, target});
}

ir::Type InferLocalFusedNorm(const ir::Call& call) {
  const ir::NodeArray<ir::Expr>& args = call.args();
  CheckTensors(call, ir::TensorType::Cast(args[0].ty()), ir::TensorType::Cast(args[1].ty()),
               ir::TensorType::Cast(args[2].ty()));
  return ir::MakeTupleType({args[0].ty(), args[0].ty()});
}

const ir::OnLoad kRegisterFusedNorm([] {
  RegisterCollective(abi::Collective::kAllReduceAddRmsNorm, InferFusedNorm, InferLocalFusedNorm);
});

}  // namespace

}  // namespace distir::dialect
