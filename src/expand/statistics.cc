// Variances, in two passes, as on one device; and means that are sums divided by their number.
#include "expand/algorithm.h"
#include "ir/symbolic.h"
#include "rules/axes.h"

namespace distir {
namespace expand {

namespace {

const ir::AttrField kStatisticalAxis("relax.attrs.StatisticalAttrs", "axis");
const ir::AttrField kStatisticalKeepdims("relax.attrs.StatisticalAttrs", "keepdims");

const ir::GlobalFunction kDivide("relax.op.divide");
const ir::GlobalFunction kMean("relax.op.mean");
const ir::GlobalFunction kSqrt("relax.op.sqrt");
const ir::GlobalFunction kSquare("relax.op.square");
const ir::GlobalFunction kSubtract("relax.op.subtract");
const ir::GlobalFunction kSum("relax.op.sum");

std::vector<int> AxesOf(const SpecialCall& call) {
  return Marked(rules::AxisMask(kStatisticalAxis(call.attrs()), RankOf(call.arg(0))));
}

bool KeepsDims(const SpecialCall& call) { return kStatisticalKeepdims.Bool(call.attrs()); }

ir::Expr Variance(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  std::vector<int> axes = AxesOf(call);
  ir::Expr centred = w->Write(kSubtract, x, w->Reduce(kMean, x, axes));
  return w->Reduce(kMean, w->Write(kSquare, centred), axes, KeepsDims(call));
}

ir::Expr Std(const SpecialCall& call, Writer* w) { return w->Write(kSqrt, Variance(call, w)); }

// Of integers: it is truncated once, at the end.
ir::Expr Mean(const SpecialCall& call, Writer* w) {
  ir::Expr x = call.arg(0);
  int64_t count = 1;
  for (int axis : AxesOf(call)) count *= ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[axis]);
  ir::Expr sum = w->Reduce(kSum, x, AxesOf(call), KeepsDims(call));
  return w->Write(kDivide, sum, w->Scalar(static_cast<double>(count), DtypeOf(x)));
}

const AlgorithmTable kStatistics({{"relax.mean", Mean},
                                  {"relax.std", Std},
                                  {"relax.variance", Variance}});

}  // namespace

}  // namespace expand
}  // namespace distir
