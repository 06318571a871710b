// Registers segment_exchange on DTensors and on local tensors.
#include "dialect/operators/segment_exchange.h"

#include <tvm/ffi/error.h>

#include <cstdlib>

#include "dialect/mesh_table.h"
#include "dialect/operators/collective.h"
#include "dialect/operators/collective_record.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

const std::string kExchangeOnDTensors = abi::OnDTensors(abi::Collective::kSegmentExchange);
const std::string kExchangeOnTensors = abi::OnTensors(abi::Collective::kSegmentExchange);

using Row = ffi::Array<int64_t>;

int64_t Integer(const ir::Call& call, const char* key) {
  auto value = ir::GetAttr(call.attrs(), key).as<int64_t>();
  DISTIR_REQUIRE(value.has_value(), ValueError)
      << ir::Op::Cast(call.op()).name() << " needs attribute " << key << ", an integer";
  return *value;
}

bool IsNumber(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

}  // namespace

bool IsSegmentExchange(const ir::Expr& op) {
  return IsOnDTensors(op, abi::Collective::kSegmentExchange);
}
bool IsLocalSegmentExchange(const ir::Expr& op) {
  return IsOnTensors(op, abi::Collective::kSegmentExchange);
}

ir::Call MakeSegmentExchange(const ir::Expr& x, const ir::DTensorType& target,
                             const SegmentMove& move) {
  ffi::Array<Row> segments;
  for (const mesh::Segment& each : move.segments)
    segments.push_back({each.source, each.target, each.step, each.count});
  return ir::MakeOpCall(target, kExchangeOnDTensors.c_str(), {x},
                        {{"device_mesh", target.device_mesh()},
                         {"placement", target.placement()},
                         {"dim", int64_t(move.moved.dim)},
                         {"size", move.moved.target_size},
                         {"segments", segments},
                         {"fill", ffi::String(move.fill)}});
}

ir::Call MakeLocalSegmentExchange(const ir::Expr& x, const ir::Type& type,
                                  const std::string& plan) {
  return ir::MakeOpCall(type, kExchangeOnTensors.c_str(), {x}, {{"plan", ffi::String(plan)}},
                        {type});
}

SegmentMove MoveOf(const ir::Call& call) {
  const std::string name = ir::Op::Cast(call.op()).name();
  auto source = ir::DTensorType::Cast(call.args()[0].ty());
  DISTIR_REQUIRE(source.defined() && ir::HasKnownShape(source.tensor_ty()), TypeError)
      << name << " takes a DTensor of known shape, got " << ir::Print(call.args()[0].ty());
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(source.tensor_ty());
  SegmentMove move;
  const int64_t dim = Integer(call, "dim");
  DISTIR_REQUIRE(dim >= 0 && dim < static_cast<int64_t>(shape.size()), ValueError)
      << name << ": dim=" << dim << " is no dimension of " << ir::Print(source);
  move.moved = {static_cast<int>(dim), ir::StaticDim(shape[dim]), Integer(call, "size")};
  DISTIR_REQUIRE(move.moved.source_size >= 0 && move.moved.target_size >= 0, ValueError)
      << name << " moves along dimensions of known size, got " << ir::Print(source) << " to size "
      << move.moved.target_size;
  auto segments = ir::GetAttr(call.attrs(), "segments").as<ffi::Array<Row>>();
  DISTIR_REQUIRE(segments.has_value(), ValueError)
      << name << " needs attribute segments, lists of four integers";
  for (const Row& row : *segments) {
    DISTIR_REQUIRE(row.size() == 4, ValueError)
        << name << ": a segment is source, target, step, count, got " << row.size() << " integers";
    move.segments.push_back({row[0], row[1], row[2], row[3]});
  }
  auto fill = ir::GetAttr(call.attrs(), "fill").as<ffi::String>();
  DISTIR_REQUIRE(fill.has_value() && (*fill == kAnyFill || IsNumber(*fill)), ValueError)
      << name << " needs attribute fill, the text of a number or " << kAnyFill;
  move.fill = *fill;
  mesh::CheckSegments(move.moved, move.segments);
  return move;
}

namespace {

ir::Type InferSegmentExchange(const ir::Call& call) {
  const SegmentMove move = MoveOf(call);
  auto source_ty = ir::DTensorType::Cast(call.args()[0].ty());
  ffi::Array<ir::Expr> shape = ir::ShapeOf(source_ty.tensor_ty());
  shape.Set(move.moved.dim, ir::MakeInt(move.moved.target_size));
  ir::DTensorType target_ty = ir::MakeDTensorType(ir::MakeTensorType(shape, source_ty.tensor_ty()),
                                                  TargetMesh(call), TargetPlacement(call));
  MeshTable table;
  mesh::Sharding source = table.ShardingOf(source_ty);
  const mesh::Sharding& target = table.ShardingOf(target_ty);
  source.dims[move.moved.dim] = target.dims[move.moved.dim];
  DISTIR_REQUIRE(table.RootOf(source_ty) == table.RootOf(target_ty) &&
                     mesh::Canonical(source) == mesh::Canonical(target),
                 ValueError)
      << ir::Op::Cast(call.op()).name() << " leaves all dimensions but " << move.moved.dim
      << " as they are, got " << ir::Print(source_ty) << " and " << ir::Print(target_ty);
  return target_ty;
}

ir::Type InferLocalSegmentExchange(const ir::Call& call) {
  DISTIR_REQUIRE(call.ty_args().size() == 1, ValueError)
      << ir::Op::Cast(call.op()).name() << " needs the type of its result";
  return call.ty_args()[0];
}

const ir::OnLoad kRegisterSegmentExchange([] {
  RegisterCollective(abi::Collective::kSegmentExchange, InferSegmentExchange,
                     InferLocalSegmentExchange);
});

}  // namespace

}  // namespace distir::dialect
