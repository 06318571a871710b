// Elementwise operators, and operators that return their operand unchanged.
#include "ops/family.h"
#include "rules/factor/broadcasting.h"

namespace distir::ops {

namespace {

constexpr Summary kAll = {"all"};
constexpr Summary kAllButStretched = {"all", "", "dimensions of size 1 that are broadcast"};

Operator Identity(const char* name) {
  return Operator(name, rules::Broadcasting).Pad(Padding::kParallel);
}

Operator Elementwise(const char* name) { return Identity(name).IsElementwise(); }

// Division of integers truncates.
// Rounding to fewer bits keeps order, but not sums; only float to float.
bool BetweenFloats(const OpView& view) {
  return IsFloat(view.operands[0]) && IsFloat(view.results[0]);
}

const Operators kUnary(
    "elementwise unary", kAll,
    {Elementwise("relax.abs"),
     Elementwise("relax.acos"),
     Elementwise("relax.acosh"),
     Elementwise("relax.asin"),
     Elementwise("relax.asinh"),
     Elementwise("relax.astype")
         .Commutes(Commutation().Max(In::kAll).Min(In::kAll).If(BetweenFloats)),
     Elementwise("relax.atan"),
     Elementwise("relax.atanh"),
     Elementwise("relax.bitwise_not"),
     Elementwise("relax.ceil").Commutes(kIncreasing),
     Elementwise("relax.clip"),
     Elementwise("relax.cos"),
     Elementwise("relax.cosh"),
     Elementwise("relax.erf"),
     Elementwise("relax.exp").Commutes(kIncreasing),
     Elementwise("relax.floor").Commutes(kIncreasing),
     Elementwise("relax.isfinite"),
     Elementwise("relax.isinf"),
     Elementwise("relax.isnan"),
     Elementwise("relax.log"),
     Elementwise("relax.logical_not"),
     Elementwise("relax.negative").Commutes(Commutation().Sum(In::kAll).Mean(In::kAll)),
     Elementwise("relax.nn.dropout"),
     Elementwise("relax.nn.gelu"),
     Elementwise("relax.nn.gelu_tanh"),
     Elementwise("relax.nn.leakyrelu"),
     Elementwise("relax.nn.relu").Commutes(kIncreasing),
     Elementwise("relax.nn.selu"),
     Elementwise("relax.nn.silu"),
     Elementwise("relax.nn.softplus"),
     Elementwise("relax.round").Commutes(kIncreasing),
     Elementwise("relax.rsqrt"),
     Elementwise("relax.sigmoid").Commutes(kIncreasing),
     Elementwise("relax.sign"),
     Elementwise("relax.sin"),
     Elementwise("relax.sinh"),
     Elementwise("relax.sqrt"),
     Elementwise("relax.square"),
     Elementwise("relax.tan"),
     Elementwise("relax.tanh").Commutes(kIncreasing),
     Elementwise("relax.trunc")});

// The value goes on as it is.
const Operators kIdentity(
    "identity", kAll,
    {Identity("relax.builtin.stop_lift_params").KeepsZeros().Commutes(kMoving),
     Identity("relax.dist.annotate_sharding"), Identity("relax.dist.propagation_barrier"),
     Identity("relax.grad.end_checkpoint"), Identity("relax.grad.no_grad"),
     Identity("relax.grad.start_checkpoint"), Identity("relax.hint_on_device"),
     Identity("relax.to_vdevice")});

const Operators kBinary(
    "elementwise binary", kAllButStretched,
    {Elementwise("relax.add")
         .Commutes(Commutation().Sum(In::kAll).Mean(In::kAny).Max(In::kOne).Min(In::kOne)),
     Elementwise("relax.atan2"),
     Elementwise("relax.bitwise_and"),
     Elementwise("relax.bitwise_or"),
     Elementwise("relax.bitwise_xor"),
     Elementwise("relax.divide")
         .Tails(OperandTails::kDivisor)
         .Commutes(Commutation().Sum(In::kFirst).Mean(In::kFirst).If(OnFloats)),
     Elementwise("relax.equal"),
     Elementwise("relax.floor_divide").Tails(OperandTails::kDivisor),
     Elementwise("relax.floor_mod").Tails(OperandTails::kDivisor),
     Elementwise("relax.greater"),
     Elementwise("relax.greater_equal"),
     Elementwise("relax.left_shift"),
     Elementwise("relax.less"),
     Elementwise("relax.less_equal"),
     Elementwise("relax.log_add_exp"),
     Elementwise("relax.logical_and"),
     Elementwise("relax.logical_or"),
     Elementwise("relax.logical_xor"),
     Elementwise("relax.maximum").Commutes(Commutation().Max(In::kAny).Min(In::kOne)),
     Elementwise("relax.minimum").Commutes(Commutation().Max(In::kOne).Min(In::kAny)),
     Elementwise("relax.mod").Tails(OperandTails::kDivisor),
     Elementwise("relax.multiply")
         .Commutes(Commutation().Sum(In::kOne).Mean(In::kOne).Prod(In::kAll)),
     Elementwise("relax.not_equal"),
     Elementwise("relax.power"),
     Elementwise("relax.right_shift"),
     Elementwise("relax.subtract")
         .Commutes(Commutation().Sum(In::kAll).Mean(In::kAny).Max(In::kFirst).Min(In::kFirst))});

const Operators kTernary("elementwise ternary", kAllButStretched,
                         {Elementwise("relax.ewise_fma"), Elementwise("relax.where")});

}  // namespace

}  // namespace distir::ops
