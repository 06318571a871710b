// Registers random_bits and random_normal, and their rule: an element follows from its counter.
#include <tvm/ffi/error.h>

#include <string>

#include "ir/build.h"
#include "ir/symbolic.h"
#include "ir/tvm/registration.h"
#include "ops/family.h"
#include "rules/call/infer_type.h"
#include "rules/factor/broadcasting.h"
#include "support/error.h"

namespace distir::ops {

namespace {

const std::string kRandomBits = "relax.dist.random_bits";
const std::string kRandomNormal = "relax.dist.random_normal";
constexpr const char* kTextOfBits =
    "Random bits by Threefry 2x32 of a key (a scalar) and counters, which are rows + columns.";
constexpr const char* kTextOfNormal =
    "Numbers of the normal distribution, by the bits that random_bits makes.";

bool IsInteger(const DLDataType& dtype, int bits) {
  return dtype.lanes == 1 && dtype.bits == bits && (dtype.code == kDLInt || dtype.code == kDLUInt);
}

/*! \brief The type of elements that follow from a key and counters. */
ir::Type InferByCounters(const ir::Call& call, const std::string& name, DLDataType dtype) {
  const ir::NodeArray<ir::Expr>& args = call.args();
  for (const ir::Expr& arg : args) {
    auto type = ir::TensorType::Cast(arg.ty());
    DISTIR_REQUIRE(type.defined() && type.has_dtype() && IsInteger(type.dtype(), 64) &&
                       ir::HasKnownShape(type),
                   TypeError)
        << name << " takes tensors of 64-bit integers, a key and counters, got "
        << ir::Print(arg.ty());
  }
  DISTIR_REQUIRE(ir::TensorType::Cast(args[0].ty()).ndim() == 0, ValueError)
      << name << " takes a scalar as key, got " << ir::Print(args[0].ty());
  // Counters broadcast as operands of a sum.
  const ir::Call sum = ir::make::kAdd(args[1], args[2]).cast<ir::Call>();
  const ir::Type counters = ir::InferTensorType(sum);
  return ir::MakeTensorType(ir::ShapeOf(ir::TensorType::Cast(counters)), dtype);
}

ir::Type InferRandomBits(const ir::Call& call) {
  auto dtype = ir::GetAttr(call.attrs(), "dtype").as<ffi::String>();
  DISTIR_REQUIRE(dtype == "uint32" || dtype == "uint64" || dtype == "int64", ValueError)
      << "R.dist.random_bits makes dtype=\"uint32\", \"uint64\" or \"int64\"";
  return InferByCounters(call, "R.dist.random_bits", ffi::StringToDLDataType(*dtype));
}

ir::Type InferRandomNormal(const ir::Call& call) {
  auto low = ir::GetAttr(call.attrs(), "low").as<double>();
  auto high = ir::GetAttr(call.attrs(), "high").as<double>();
  DISTIR_REQUIRE(low.has_value() && high.has_value() && *low < *high, ValueError)
      << "R.dist.random_normal takes bounds, low=.. below high=..";
  return InferByCounters(call, "R.dist.random_normal", kFloat32);
}

// A round is an addition, a rotation and an exclusive or, and there are 20; a sum of keys is behind
// each fourth.
double Operations(const OpView& view) {
  constexpr double kPerElement = 20 * 5 + 5 * 4;
  const double elements = NumElements(StaticSizes(view.results[0]));
  return elements > 0 ? kPerElement * elements : 0;
}

Operator ByCounter(const std::string& name) {
  return Operator(name.c_str(), rules::Broadcasting)
      .Pad(Padding::kParallel)
      .IsElementwise()
      .Operations(Operations);
}

const Operators kRandom("random", {"all: each shard by its positions"},
                        {ByCounter(kRandomBits), ByCounter(kRandomNormal)});

const ir::OnLoad kRegister([] {
  ir::RegisterOp(kRandomBits, kTextOfBits, {"key", "rows", "columns"}, true);
  ir::SetInferType(kRandomBits, InferRandomBits);
  ir::RegisterOp(kRandomNormal, kTextOfNormal, {"key", "rows", "columns"}, true);
  ir::SetInferType(kRandomNormal, InferRandomNormal);
  for (const std::string& name : {kRandomBits, kRandomNormal})
    ir::SetInferDTensorType(name, rules::InferDTensorType);
});

}  // namespace

}  // namespace distir::ops
