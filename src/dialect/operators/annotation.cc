// Registers annotate_sharding, the propagation barrier and sharding groups; reads and writes their
// terms.
#include "dialect/operators/annotation.h"

#include <tvm/ffi/error.h>

#include <algorithm>

#include "dialect/operators/collective.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/tvm/registration.h"
#include "support/counted.h"
#include "support/error.h"

namespace distir::dialect {

namespace {

constexpr const char* kAnnotation = "relax.dist.annotate_sharding";
constexpr const char* kBarrier = "relax.dist.propagation_barrier";
constexpr const char* kGroup = "relax.dist.sharding_group";
constexpr const char* kOpen = "open";
constexpr const char* kPriorities = "priorities";
constexpr const char* kReplicated = "replicated";
constexpr const char* kBlocks = "blocks";

std::vector<int> Integers(const ir::Call& call, const char* key, const std::string& name) {
  const ffi::Any value = ir::GetAttr(call.attrs(), key);
  if (value == nullptr) return {};
  auto list = value.as<ffi::Array<int64_t>>();
  DISTIR_REQUIRE(list.has_value(), ValueError)
      << name << " is annotated with " << key << " that is no list of integers";
  std::vector<int> numbers;
  for (int64_t number : *list) {
    DISTIR_REQUIRE(number >= 0 && number <= INT32_MAX, ValueError)
        << name << " is annotated with " << key << "=[.., " << number << "]; numbers begin with 0";
    numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

ffi::Array<int64_t> ToArray(const std::vector<int>& numbers) {
  ffi::Array<int64_t> array;
  for (int number : numbers) array.push_back(number);
  return array;
}

}  // namespace

bool IsAnnotation(const ir::Call& call) {
  return call.defined() && ir::IsOp(call.op(), kAnnotation);
}

Terms TermsOf(const ir::Call& annotation, const std::string& name, int rank) {
  Terms terms{Integers(annotation, kOpen, name), Integers(annotation, kPriorities, name),
              Integers(annotation, kReplicated, name)};
  for (int dim : terms.open) {
    DISTIR_REQUIRE(dim < rank, ValueError)
        << name << " is annotated as open in dimension " << dim << ", and has "
        << support::Counted(rank, "dimension", "dimensions");
  }
  DISTIR_REQUIRE(static_cast<int>(terms.priorities.size()) <= rank, ValueError)
      << name << " is annotated with "
      << support::Counted(terms.priorities.size(), "priority", "priorities") << ", and has "
      << support::Counted(rank, "dimension", "dimensions");
  const std::vector<int> dims = PlacementDims(TargetPlacement(annotation));
  for (int axis : terms.replicated) {
    DISTIR_REQUIRE(axis < static_cast<int>(dims.size()), ValueError)
        << name << " is annotated as replicated over axis " << axis << " of a mesh of "
        << support::Counted(dims.size(), "axis", "axes");
    DISTIR_REQUIRE(dims[axis] < 0, ValueError)
        << name << " is annotated as replicated over axis " << axis
        << " of its mesh, which shards its dimension " << dims[axis];
  }
  return terms;
}

ir::Call MakeAnnotation(const ir::Expr& value, const ir::DeviceMesh& mesh,
                        const ir::Placement& placement, const Terms& terms) {
  if (terms.empty()) {
    ir::Call call = ir::make::kDistAnnotateSharding(value, mesh, placement).cast<ir::Call>();
    ir::SetType(call, value.ty());
    return call;
  }
  std::vector<std::pair<const char*, ffi::Any>> attrs = {{"device_mesh", mesh},
                                                         {"placement", placement}};
  if (!terms.open.empty()) attrs.emplace_back(kOpen, ToArray(terms.open));
  if (!terms.priorities.empty()) attrs.emplace_back(kPriorities, ToArray(terms.priorities));
  if (!terms.replicated.empty()) attrs.emplace_back(kReplicated, ToArray(terms.replicated));
  return ir::MakeOpCall(value.ty(), kAnnotation, {value}, attrs);
}

bool IsBarrier(const ir::Expr& op) { return ir::IsOp(op, kBarrier); }

Blocked BlockedBy(const ir::Call& barrier) {
  auto blocks = ir::GetAttr(barrier.attrs(), kBlocks).as<ffi::String>();
  const std::string text = blocks.has_value() ? std::string(*blocks) : "both";
  DISTIR_REQUIRE(text == "both" || text == "forward" || text == "backward", ValueError)
      << "R.dist.propagation_barrier: blocks is \"" << text
      << "\"; it has to be \"forward\", \"backward\" or \"both\"";
  return {text != "backward", text != "forward"};
}

bool IsShardingGroup(const ir::Expr& op) { return ir::IsOp(op, kGroup); }

namespace {

ir::Type InferBarrier(const ir::Call& call) {
  BlockedBy(call);
  return call.args()[0].ty();
}

ir::Type InferGroup(const ir::Call& call) {
  DISTIR_REQUIRE(ir::TupleType::Is(call.args()[0].ty()), TypeError)
      << "R.dist.sharding_group takes a tuple of tensors, got " << ir::Print(call.args()[0].ty());
  return call.args()[0].ty();
}

const ir::OnLoad kRegisterAnnotation([] {
  ir::RegisterOp(kBarrier, "The value itself; shardings do not spread through.", {"x"}, true);
  ir::SetInferType(kBarrier, InferBarrier);
  ir::SetInferDTensorType(kBarrier, InferBarrier);
  ir::RegisterOp(kGroup, "The values themselves, which are sharded alike.", {"values"}, true);
  ir::SetInferType(kGroup, InferGroup);
  ir::SetInferDTensorType(kGroup, InferGroup);
});

}  // namespace

}  // namespace distir::dialect
