// Builds typed calls of operators on DTensors, with redistributions of operands where the rule
// needs them.
#include "decompose/writer.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/size_arithmetic.h"
#include "ir/symbolic.h"
#include "mesh/common_view.h"
#include "rules/call/infer_type.h"
#include "rules/registry.h"
#include "support/dtypes.h"

namespace distir::decompose {

namespace {

ffi::Array<int64_t> ToArray(const std::vector<int>& values) {
  ffi::Array<int64_t> array;
  for (int value : values) array.push_back(value);
  return array;
}

// Compiled kernels assume that data is aligned so.
constexpr size_t kAlignment = 64;

struct ScalarAllocator {
  void AllocData(DLTensor* tensor) { tensor->data = std::aligned_alloc(kAlignment, kAlignment); }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

template <typename T>
ffi::Tensor HostScalar(T value, DLDataType dtype) {
  ffi::Tensor tensor =
      ffi::Tensor::FromNDAlloc(ScalarAllocator(), ffi::Shape({}), dtype, DLDevice{kDLCPU, 0});
  *static_cast<T*>(tensor.data_ptr()) = value;
  return tensor;
}

}  // namespace

ir::TensorType TensorTypeOf(const ir::Expr& x) {
  return ir::TensorType::Cast(rules::StripDistribution(x.ty()));
}
int RankOf(const ir::Expr& x) { return rules::ShardableRank(TensorTypeOf(x)); }
DLDataType DtypeOf(const ir::Expr& x) { return TensorTypeOf(x).dtype(); }
ffi::Array<ir::Expr> SplitShape(const ir::Expr& x, int dim, int64_t shards) {
  ffi::Array<ir::Expr> shape;
  const ir::NodeArray<ir::Expr>& whole = ir::ShapeOf(TensorTypeOf(x));
  for (int d = 0; d < static_cast<int>(whole.size()); ++d) {
    if (d == dim) shape.push_back(ir::MakeInt(shards));
    shape.push_back(d == dim ? ir::FloorDivide(whole[d], shards) : whole[d]);
  }
  return shape;
}

ir::Expr Writer::Reduce(const ir::GlobalFunction& make, const ir::Expr& x,
                        const std::vector<int>& dims, bool keepdims) {
  return Write(make, x, ToArray(dims), keepdims);
}

ir::Expr Writer::Cast(const ir::Expr& x, DLDataType dtype) {
  DLDataType now = DtypeOf(x);
  bool is_same = now.code == dtype.code && now.bits == dtype.bits && now.lanes == dtype.lanes;
  return is_same ? x : Write(ir::make::kAstype, x, dtype);
}

ir::Expr Writer::Reshape(const ir::Expr& x, const ir::NodeArray<ir::Expr>& shape) {
  return Write(ir::make::kReshape, x, ir::MakeShape(shape));
}

ir::Expr Writer::ExpandDims(const ir::Expr& x, const std::vector<int>& dims) {
  return dims.empty() ? x : Write(ir::make::kExpandDims, x, ToArray(dims));
}

ir::Expr Writer::Squeeze(const ir::Expr& x, const std::vector<int>& dims) {
  return Write(ir::make::kSqueeze, x, ToArray(dims));
}

ir::Expr Writer::Field(const ir::Expr& tuple, int index) {
  return emit_(ir::MakeTupleGetItem(tuple, index));
}

ir::Expr Writer::Scalar(double value, DLDataType dtype) {
  bool is_double = dtype.code == kDLFloat && dtype.bits == 64;
  DLDataType made = IsFloat(dtype) ? DLDataType{kDLFloat, uint8_t(is_double ? 64 : 32), 1} : kInt64;
  ffi::Tensor tensor = !IsFloat(dtype) ? HostScalar(static_cast<int64_t>(value), made)
                       : is_double     ? HostScalar(value, made)
                                       : HostScalar(static_cast<float>(value), made);
  ir::Expr constant = ir::MakeTensorConstant(tensor, ir::Type());
  ir::Expr typed =
      ir::MakeTensorConstant(tensor, TypeOf(TensorTypeOf(constant), mesh::Sharding::Replicated(0)));
  return Cast(typed, dtype);
}

const mesh::Sharding& Writer::ShardingOf(const ir::Expr& x) {
  return meshes_.ShardingOf(ir::DTensorType::Cast(x.ty()));
}

ir::DTensorType Writer::TypeOf(const ir::TensorType& type, const mesh::Sharding& sharding) {
  ir::Placement placement = meshes_.PlacementOn(view_, root_, sharding);
  if (!placement.defined()) return meshes_.TypeOf(type, root_, sharding);
  return ir::MakeDTensorType(type, view_, placement);
}

ir::Expr Writer::Placed(const ir::Expr& x, const mesh::Sharding& sharding) {
  if (ir::DTensorType::Is(x.ty()) && mesh::SameLayout(meshes_.Root(root_), ShardingOf(x), sharding))
    return x;
  return emit_(dialect::MakeRedistribute(x, TypeOf(TensorTypeOf(x), sharding)));
}

ir::Expr Writer::PlaceArg(const ir::Expr& arg, InOrder<std::vector<mesh::Sharding>>* operands) {
  if (ir::DTensorType::Is(arg.ty())) return Placed(arg, operands->Take());
  auto type = ir::TupleType::Cast(arg.ty());
  if (!type.defined() || !dialect::HasDTensor(type)) return arg;
  auto tuple = ir::Tuple::Cast(arg);
  ffi::Array<ir::Expr> fields;
  for (size_t i = 0; i < type.fields().size(); ++i) {
    ir::Expr field = tuple.defined() ? tuple.fields()[i] : Field(arg, static_cast<int>(i));
    fields.push_back(PlaceArg(field, operands));
  }
  return ir::MakeTuple(fields);
}

ffi::Array<ir::Expr> Writer::PlaceAll(const ir::NodeArray<ir::Expr>& args,
                                      const std::vector<mesh::Sharding>& operands) {
  InOrder in_order(operands);
  ffi::Array<ir::Expr> placed;
  for (const ir::Expr& arg : args) placed.push_back(PlaceArg(arg, &in_order));
  return placed;
}

ir::Expr Writer::Move(const ir::Expr& x, int dim, int64_t size,
                      const std::vector<mesh::Segment>& segments, const std::string& fill) {
  ir::TensorType type = TensorTypeOf(x);
  ffi::Array<ir::Expr> shape = ir::ShapeOf(type);
  const int64_t before = ir::StaticDim(shape[dim]);
  shape.Set(dim, ir::MakeInt(size));
  ir::DTensorType target = TypeOf(ir::MakeTensorType(shape, type), ShardingOf(x));
  return emit_(dialect::MakeSegmentExchange(x, target, {{dim, before, size}, segments, fill}));
}

ir::Expr Writer::Resized(const ir::Expr& x, int dim, int64_t size) {
  const int64_t have = ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[dim]);
  if (have == size) return x;
  return Move(x, dim, size, {{0, 0, 1, std::min(have, size)}}, dialect::kAnyFill);
}

ir::Expr Writer::Even(const ir::Expr& x, int dim) {
  const int64_t have = ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[dim]);
  if (have < 0) return x;
  return Resized(x, dim, mesh::EvenExtent(have, mesh::NumShards(ShardingOf(x).dims[dim])));
}

Writer Writer::OnViewOf(const std::vector<mesh::AxisList>& lists) const {
  std::optional<mesh::Mesh> view = mesh::CommonView(meshes_.Root(root_), lists);
  TVM_FFI_ICHECK(view.has_value()) << "the shardings of a call have no common mesh";
  return Writer(&meshes_, meshes_.Intern(*view), emit_);
}

ir::Expr Writer::Named(const ir::Expr& x) {
  auto type = ir::DTensorType::Cast(x.ty());
  if (!type.defined() || type.device_mesh().same_as(view_)) return x;
  return emit_(dialect::MakeRedistribute(x, TypeOf(type.tensor_ty(), ShardingOf(x))));
}

ir::Expr Writer::Arange(const ir::Expr& begin, const ir::Expr& end) {
  ir::Call made = ir::make::kArange(begin, end, ir::MakeInt(1), kInt64).cast<ir::Call>();
  ir::Type type = rules::InferGlobalType(made);
  return emit_(ir::MakeCall(type, made.op(), made.args(), made.attrs()));
}

ir::Expr Writer::Number(const ir::Expr& value) {
  return Placed(Arange(value, ir::Add(value, 1)), mesh::Sharding::Replicated(1));
}

ir::Expr Writer::Range(const ir::Expr& size, const mesh::AxisList& axes) {
  ir::Expr range = Arange(ir::MakeInt(0), size);
  mesh::Sharding sharding = mesh::Sharding::Replicated(1);
  sharding.dims[0] = axes;
  return Placed(range, sharding);
}

ir::Expr Writer::ShardIndex(const mesh::AxisList& axes, int dim, int rank) {
  ir::Expr indices = Range(ir::MakeInt(mesh::NumShards(axes)), axes);
  std::vector<int> ones;
  for (int d = 0; d < rank; ++d) {
    if (d != dim) ones.push_back(d);
  }
  return ExpandDims(indices, ones);
}

ir::Expr Writer::Positions(const mesh::AxisList& axes, const ir::Expr& size) {
  int64_t whole = ir::StaticDim(size), shards = mesh::NumShards(axes);
  if (whole < 0 || whole % shards != 0) return Range(size, axes);
  int64_t length = whole / shards;
  ir::Expr begin = Write(ir::make::kMultiply, ShardIndex(axes, 0, 2),
                         Scalar(static_cast<double>(length), kInt64));
  ir::Expr within = Range(ir::MakeInt(length), {});
  return Reshape(Write(ir::make::kAdd, begin, within), {size});
}

ir::Expr Writer::Place(const ir::Call& call) {
  ir::Type global_ty = rules::InferGlobalType(call);
  rules::FactorRule rule = rules::RuleOf(rules::ViewCall(call, global_ty));
  rules::InferredCall inferred = rules::InferCall(call, global_ty, rule, &meshes_);
  ffi::Array<ir::Expr> args = PlaceAll(call.args(), inferred.sharding.operands);
  return emit_(ir::MakeCall(inferred.type, call.op(), args, call.attrs(), call.ty_args()));
}

}  // namespace distir::decompose
