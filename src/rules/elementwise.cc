// Elementwise operators with NumPy broadcasting: result dimension d takes its factor from every
// operand whose dimension, aligned from the right, has the same size; a dimension of size 1 that is
// stretched has no factor. Where there are several results (dropout and its mask) they have one
// shape.
#include "ir/symbolic.h"
#include "rules/registry.h"

namespace distir {
namespace rules {

namespace {

// Where only ranks are known, the dimensions of a single operand are those of the result.
bool IsAligned(const OpView& view, size_t operand, int dim, int result_dim) {
  const ir::TensorType& from = view.operands[operand];
  const ir::TensorType& to = view.results[0];
  if (!ir::HasKnownShape(from) || !ir::HasKnownShape(to)) return view.operands.size() == 1;
  return SameSize(from, dim, to, result_dim);
}

FactorRule Broadcasting(const OpView& view) {
  RuleBuilder builder(view);
  Sizes sizes = StaticSizes(view.results[0]);
  int rank = static_cast<int>(sizes.size());
  for (int d = 0; d < rank; ++d) {
    int factor = builder.Parallel(sizes[d]);
    for (size_t r = 0; r < view.results.size(); ++r) builder.Result(r, d, factor);
    for (size_t i = 0; i < view.operands.size(); ++i) {
      int dim = d - (rank - ShardableRank(view.operands[i]));
      if (dim >= 0 && IsAligned(view, i, dim, d)) builder.Operand(i, dim, factor);
    }
  }
  return builder.Finish();
}

constexpr RuleSummary kAll = {"all"};
constexpr RuleSummary kAllButStretched = {"all", "", "dimensions of size 1 that are broadcast"};

const RuleTable kUnary("elementwise unary", kAll,
                       {{"relax.abs", Broadcasting},          {"relax.acos", Broadcasting},
                        {"relax.acosh", Broadcasting},        {"relax.asin", Broadcasting},
                        {"relax.asinh", Broadcasting},        {"relax.astype", Broadcasting},
                        {"relax.atan", Broadcasting},         {"relax.atanh", Broadcasting},
                        {"relax.bitwise_not", Broadcasting},  {"relax.ceil", Broadcasting},
                        {"relax.clip", Broadcasting},         {"relax.cos", Broadcasting},
                        {"relax.cosh", Broadcasting},         {"relax.erf", Broadcasting},
                        {"relax.exp", Broadcasting},          {"relax.floor", Broadcasting},
                        {"relax.isfinite", Broadcasting},     {"relax.isinf", Broadcasting},
                        {"relax.isnan", Broadcasting},        {"relax.log", Broadcasting},
                        {"relax.logical_not", Broadcasting},  {"relax.negative", Broadcasting},
                        {"relax.nn.dropout", Broadcasting},   {"relax.nn.gelu", Broadcasting},
                        {"relax.nn.gelu_tanh", Broadcasting}, {"relax.nn.leakyrelu", Broadcasting},
                        {"relax.nn.relu", Broadcasting},      {"relax.nn.selu", Broadcasting},
                        {"relax.nn.silu", Broadcasting},      {"relax.nn.softplus", Broadcasting},
                        {"relax.round", Broadcasting},        {"relax.rsqrt", Broadcasting},
                        {"relax.sigmoid", Broadcasting},      {"relax.sign", Broadcasting},
                        {"relax.sin", Broadcasting},          {"relax.sinh", Broadcasting},
                        {"relax.sqrt", Broadcasting},         {"relax.square", Broadcasting},
                        {"relax.tan", Broadcasting},          {"relax.tanh", Broadcasting},
                        {"relax.trunc", Broadcasting}});

// The value goes on as it is.
const RuleTable kIdentity("identity", kAll,
                          {{"relax.builtin.stop_lift_params", Broadcasting},
                           {"relax.dist.annotate_sharding", Broadcasting},
                           {"relax.grad.end_checkpoint", Broadcasting},
                           {"relax.grad.no_grad", Broadcasting},
                           {"relax.grad.start_checkpoint", Broadcasting},
                           {"relax.hint_on_device", Broadcasting},
                           {"relax.to_vdevice", Broadcasting}});

const RuleTable kBinary(
    "elementwise binary", kAllButStretched,
    {{"relax.add", Broadcasting},           {"relax.atan2", Broadcasting},
     {"relax.bitwise_and", Broadcasting},   {"relax.bitwise_or", Broadcasting},
     {"relax.bitwise_xor", Broadcasting},   {"relax.divide", Broadcasting},
     {"relax.equal", Broadcasting},         {"relax.floor_divide", Broadcasting},
     {"relax.floor_mod", Broadcasting},     {"relax.greater", Broadcasting},
     {"relax.greater_equal", Broadcasting}, {"relax.left_shift", Broadcasting},
     {"relax.less", Broadcasting},          {"relax.less_equal", Broadcasting},
     {"relax.log_add_exp", Broadcasting},   {"relax.logical_and", Broadcasting},
     {"relax.logical_or", Broadcasting},    {"relax.logical_xor", Broadcasting},
     {"relax.maximum", Broadcasting},       {"relax.minimum", Broadcasting},
     {"relax.mod", Broadcasting},           {"relax.multiply", Broadcasting},
     {"relax.not_equal", Broadcasting},     {"relax.power", Broadcasting},
     {"relax.right_shift", Broadcasting},   {"relax.subtract", Broadcasting}});

const RuleTable kTernary("elementwise ternary", kAllButStretched,
                         {{"relax.ewise_fma", Broadcasting}, {"relax.where", Broadcasting}});

// The operands' values do not matter, but the local result must have the local shape of the
// operand.
const RuleTable kLike("create", kAll,
                      {{"relax.full_like", Broadcasting},
                       {"relax.ones_like", Broadcasting},
                       {"relax.zeros_like", Broadcasting}});

const RuleTable kBroadcastTo("broadcast", kAllButStretched,
                             {{"relax.broadcast_to", Broadcasting, /*shape_argument=*/1}});

}  // namespace

}  // namespace rules
}  // namespace distir
