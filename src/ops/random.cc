// Registers random_bits, and its rule: an element follows from its counter alone.
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
constexpr const char* kText =
    "Random bits by Threefry 2x32 of a key (a scalar) and counters, which are rows + columns.";

bool IsInteger(const DLDataType& dtype, int bits) {
  return dtype.lanes == 1 && dtype.bits == bits && (dtype.code == kDLInt || dtype.code == kDLUInt);
}

ir::Type InferRandomBits(const ir::Call& call) {
  const ir::NodeArray<ir::Expr>& args = call.args();
  for (const ir::Expr& arg : args) {
    auto type = ir::TensorType::Cast(arg.ty());
    DISTIR_REQUIRE(type.defined() && type.has_dtype() && IsInteger(type.dtype(), 64) &&
                       ir::HasKnownShape(type),
                   TypeError)
        << "R.dist.random_bits takes tensors of 64-bit integers, a key and counters, got "
        << ir::Print(arg.ty());
  }
  DISTIR_REQUIRE(ir::TensorType::Cast(args[0].ty()).ndim() == 0, ValueError)
      << "R.dist.random_bits takes a scalar as key, got " << ir::Print(args[0].ty());
  auto dtype = ir::GetAttr(call.attrs(), "dtype").as<ffi::String>();
  DISTIR_REQUIRE(dtype == "uint32" || dtype == "uint64" || dtype == "int64", ValueError)
      << "R.dist.random_bits makes dtype=\"uint32\", \"uint64\" or \"int64\"";
  // Counters broadcast as operands of a sum.
  const ir::Call sum = ir::make::kAdd(args[1], args[2]).cast<ir::Call>();
  const ir::Type counters = ir::InferTensorType(sum);
  return ir::MakeTensorType(ir::ShapeOf(ir::TensorType::Cast(counters)),
                            ffi::StringToDLDataType(*dtype));
}

// A round is an addition, a rotation and an exclusive or, and there are 20; a sum of keys is behind
// each fourth.
double Operations(const OpView& view) {
  constexpr double kPerElement = 20 * 5 + 5 * 4;
  const double elements = NumElements(StaticSizes(view.results[0]));
  return elements > 0 ? kPerElement * elements : 0;
}

const Operators kRandom("random", {"all: each shard by its positions"},
                        {Operator(kRandomBits.c_str(), rules::Broadcasting)
                             .Pad(Padding::kParallel)
                             .IsElementwise()
                             .Operations(Operations)});

const ir::OnLoad kRegister([] {
  ir::RegisterOp(kRandomBits, kText, {"key", "rows", "columns"}, true);
  ir::SetInferType(kRandomBits, InferRandomBits);
  ir::SetInferDTensorType(kRandomBits, rules::InferDTensorType);
});

}  // namespace

}  // namespace distir::ops
