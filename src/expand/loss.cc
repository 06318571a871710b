// Losses of which classes are sharded: each shard knows the losses, or the weights, of its own
// classes, and their sum is that of all.
#include <string>

#include "expand/algorithm.h"
#include "expand/lookup.h"
#include "ir/build.h"
#include "ir/symbolic.h"

namespace distir {
namespace expand {

namespace {

const ir::AttrField kReduction("relax.attrs.NLLLossAttrs", "reduction");
const ir::AttrField kIgnoreIndex("relax.attrs.NLLLossAttrs", "ignore_index");

const ir::GlobalFunction kDivide("relax.op.divide");
const ir::GlobalFunction kEqual("relax.op.equal");
const ir::GlobalFunction kMultiply("relax.op.multiply");
const ir::GlobalFunction kNegative("relax.op.negative");
const ir::GlobalFunction kNotEqual("relax.op.not_equal");
const ir::GlobalFunction kSum("relax.op.sum");
const ir::GlobalFunction kWhere("relax.op.where");

constexpr int kClass = 1;

std::vector<int> AllDims(const ir::Expr& x) {
  std::vector<int> dims;
  for (int d = 0; d < RankOf(x); ++d) dims.push_back(d);
  return dims;
}

/*! \brief The targets of a call, and what each of them weighs: 0 where it is ignored. */
struct Targets {
  ir::Expr classes;  // a class that exists where the target is ignored
  ir::Expr weights;
};

/*! \param predictions Which operand they are; targets and weights follow. */
Targets Weigh(const SpecialCall& call, size_t predictions, const mesh::AxisList& class_axes,
              Writer* w) {
  ir::Expr targets = call.arg(predictions + 1);
  DLDataType index = DtypeOf(targets), dtype = DtypeOf(call.arg(predictions));
  auto ignored = static_cast<double>(kIgnoreIndex.Int(call.attrs(), -1));
  ir::Expr counts = w->Write(kNotEqual, targets, w->Scalar(ignored, index));
  ir::Expr classes = w->Write(kWhere, counts, targets, w->Scalar(0, index));
  ir::Expr weights = w->Scalar(1, dtype);
  if (call.call.args().size() > predictions + 2)
    weights = LookUpRows(call.arg(predictions + 2), classes, 0, class_axes, w);
  return {classes, w->Write(kWhere, counts, weights, w->Scalar(0, dtype))};
}

const mesh::AxisList& ClassAxes(const SpecialCall& call, size_t predictions) {
  return call.sharding.factors[call.rule.operands[predictions][kClass][0]];
}

ir::Expr NllLoss(const SpecialCall& call, Writer* w) {
  const mesh::AxisList& axes = ClassAxes(call, 0);
  Targets targets = Weigh(call, 0, axes, w);
  ir::Expr positions = w->ExpandDims(targets.classes, {kClass});
  ir::Expr found = w->Squeeze(LookUpElements(call.arg(0), positions, kClass, axes, w), {kClass});
  ir::Expr losses = w->Write(kNegative, w->Write(kMultiply, found, targets.weights));
  std::string reduction = kReduction.Text(call.attrs());
  if (reduction == "none") return losses;
  ir::Expr sum = w->Reduce(kSum, losses, AllDims(losses), /*keepdims=*/false);
  if (reduction == "sum") return sum;
  ir::Expr weight = w->Reduce(kSum, targets.weights, AllDims(losses), /*keepdims=*/false);
  return w->Write(kDivide, sum, weight);
}

// Every class of a prediction has the gradient of its loss, 0 where it is not the target.
ir::Expr NllLossBackward(const SpecialCall& call, Writer* w) {
  ir::Expr gradient = call.arg(0), predictions = call.arg(1);
  const mesh::AxisList& axes = ClassAxes(call, 1);
  Targets targets = Weigh(call, 1, axes, w);
  if (kReduction.Text(call.attrs()) == "mean") {
    std::vector<int> all = AllDims(targets.weights);
    gradient = w->Write(kDivide, gradient, w->Reduce(kSum, targets.weights, all, false));
  }
  ir::Expr own = w->Write(kNegative, w->Write(kMultiply, targets.weights, gradient));
  const ir::Expr& size = ir::ShapeOf(TensorTypeOf(predictions))[kClass];
  std::vector<int> behind;
  for (int d = kClass + 1; d < RankOf(predictions); ++d) behind.push_back(d - kClass);
  ir::Expr classes = w->ExpandDims(w->Positions(axes, size), behind);
  ir::Expr wanted = w->ExpandDims(w->Cast(targets.classes, DtypeOf(classes)), {kClass});
  return w->Write(kWhere, w->Write(kEqual, wanted, classes), w->ExpandDims(own, {kClass}),
                  w->Scalar(0, DtypeOf(predictions)));
}

ir::Expr CrossEntropy(const SpecialCall& call, Writer* w) {
  ir::Expr products = w->Write(kMultiply, call.arg(0), call.arg(1));
  ir::Expr sum = w->Write(kNegative, w->Reduce(kSum, products, AllDims(products), false));
  int64_t batch = ir::StaticDim(ir::ShapeOf(TensorTypeOf(products))[0]);
  return w->Write(kDivide, sum, w->Scalar(static_cast<double>(batch), DtypeOf(sum)));
}

const AlgorithmTable kLosses({{"relax.grad.nll_loss_backward", NllLossBackward},
                              {"relax.nn.cross_entropy_with_logits", CrossEntropy},
                              {"relax.nn.nll_loss", NllLoss}});

}  // namespace

}  // namespace expand
}  // namespace distir
