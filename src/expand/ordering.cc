// Scans, extremes and the top elements along a sharded dimension: every shard does its own part,
// and one result of each of them is combined.
#include <algorithm>

#include "expand/algorithm.h"
#include "ir/build.h"
#include "ir/symbolic.h"
#include "rules/axes.h"

namespace distir {
namespace expand {

namespace {

const ir::AttrField kArgAxis("relax.attrs.ArgmaxArgminAttrs", "axis");
const ir::AttrField kArgKeepdims("relax.attrs.ArgmaxArgminAttrs", "keepdims");
const ir::AttrField kScanAxis("relax.attrs.ScanopAttrs", "axis");
const ir::AttrField kScanDtype("relax.attrs.ScanopAttrs", "dtype");
const ir::AttrField kScanExclusive("relax.attrs.ScanopAttrs", "exclusive");
const ir::AttrField kTopkCount("relax.attrs.TopKAttrs", "k");
const ir::AttrField kTopkAxis("relax.attrs.TopKAttrs", "axis");
const ir::AttrField kTopkReturns("relax.attrs.TopKAttrs", "ret_type");
const ir::AttrField kTopkLargest("relax.attrs.TopKAttrs", "largest");
const ir::AttrField kTopkDtype("relax.attrs.TopKAttrs", "dtype");

const ir::GlobalFunction kAdd("relax.op.add");
const ir::GlobalFunction kArgmax("relax.op.argmax");
const ir::GlobalFunction kArgmin("relax.op.argmin");
const ir::GlobalFunction kCumprod("relax.op.cumprod");
const ir::GlobalFunction kCumsum("relax.op.cumsum");
const ir::GlobalFunction kEqual("relax.op.equal");
const ir::GlobalFunction kGatherElements("relax.op.gather_elements");
const ir::GlobalFunction kLess("relax.op.less");
const ir::GlobalFunction kMax("relax.op.max");
const ir::GlobalFunction kMin("relax.op.min");
const ir::GlobalFunction kMultiply("relax.op.multiply");
const ir::GlobalFunction kProd("relax.op.prod");
const ir::GlobalFunction kSum("relax.op.sum");
const ir::GlobalFunction kTopk("relax.op.topk");
const ir::GlobalFunction kWhere("relax.op.where");

/*! \brief The operand with the sharded dimension (n,) at `axis` as (shards, n / shards). */
struct Shards {
  ir::Expr x;
  int64_t count;
  int64_t length;  // n / shards
};

Shards Split(const SpecialCall& call, int axis, Writer* w) {
  ir::Expr x = call.arg(0);
  int64_t shards = mesh::NumShards(call.SpecialAxes());
  int64_t size = ir::StaticDim(ir::ShapeOf(TensorTypeOf(x))[axis]);
  return {w->Reshape(x, SplitShape(x, axis, shards)), shards, size / shards};
}

/*! \brief Where the shard of a device begins, as dimension `axis` of `rank`. */
ir::Expr Offset(const SpecialCall& call, int64_t length, int axis, int rank, DLDataType dtype,
                Writer* w) {
  ir::Expr index = w->Cast(w->ShardIndex(call.SpecialAxes(), axis, rank), dtype);
  return w->Write(kMultiply, index, w->Scalar(static_cast<double>(length), dtype));
}

/*! \brief The value whole along dimension `dim`. */
ir::Expr Gathered(const ir::Expr& x, int dim, Writer* w) {
  mesh::Sharding sharding = w->ShardingOf(x);
  sharding.dims[dim].clear();
  return w->Placed(x, sharding);
}

// The first of the positions at which a shard has the extreme of all. TVM gives -1 where no element
// is above its lowest finite number; so does a shard of such elements, and so the whole.
template <const ir::GlobalFunction* arg_reduce, const ir::GlobalFunction* reduce>
ir::Expr ArgReduce(const SpecialCall& call, Writer* w) {
  int rank = RankOf(call.arg(0));
  int axis = Marked(rules::AxisMask(kArgAxis(call.attrs()), rank))[0];
  auto [x, shards, length] = Split(call, axis, w);
  std::vector<int> within{axis + 1};
  ir::Expr extreme = w->Reduce(*reduce, x, within);
  ir::Expr position = w->Write(*arg_reduce, x, int64_t(axis + 1), true);
  DLDataType dtype = DtypeOf(position);
  ir::Expr of_whole = w->Write(kAdd, position, Offset(call, length, axis, rank + 1, dtype, w));
  ir::Expr zero = w->Scalar(0, dtype);
  of_whole = w->Write(kWhere, w->Write(kLess, position, zero), position, of_whole);
  ir::Expr is_extreme = w->Write(kEqual, extreme, w->Reduce(*reduce, extreme, {axis}));
  ir::Expr last = w->Scalar(static_cast<double>(shards * length - 1), dtype);
  ir::Expr first = w->Reduce(kMin, w->Write(kWhere, is_extreme, of_whole, last), {axis});
  std::vector<int> gone{axis};
  if (!kArgKeepdims.Bool(call.attrs())) gone.push_back(axis + 1);
  return w->Squeeze(first, gone);
}

// Every shard scans its own part and adds what the shards before it come to.
template <const ir::GlobalFunction* scan, const ir::GlobalFunction* total,
          const ir::GlobalFunction* combine>
ir::Expr Scan(const SpecialCall& call, Writer* w) {
  ir::Expr whole = call.arg(0);
  int axis = Marked(rules::AxisMask(kScanAxis(call.attrs()), RankOf(whole)))[0];
  auto [x, shards, length] = Split(call, axis, w);
  auto stated = kScanDtype(call.attrs()).as<DLDataType>();
  x = w->Cast(x, stated && stated->bits > 0 ? *stated : DtypeOf(x));
  DLDataType dtype = DtypeOf(x);
  ir::Expr totals = Gathered(w->Reduce(*total, x, {axis + 1}), axis, w);
  ir::Expr before = w->Write(*scan, totals, int64_t(axis), dtype, true);
  bool is_exclusive = kScanExclusive.Bool(call.attrs());
  ir::Expr own = w->Write(*scan, x, int64_t(axis + 1), dtype, is_exclusive);
  return w->Reshape(w->Write(*combine, own, before), ir::ShapeOf(TensorTypeOf(whole)));
}

// The top elements of all are among those of the shards. Of equal ones the first comes first, in
// and among shards.
ir::Expr Topk(const SpecialCall& call, Writer* w) {
  ir::Expr whole = call.arg(0);
  const ir::Node& attrs = call.attrs();
  int rank = RankOf(whole);
  int axis = rules::NormalizeAxis(kTopkAxis.Int(attrs, -1), rank);
  auto [x, shards, length] = Split(call, axis, w);
  int64_t wanted = kTopkCount.Int(attrs, 1);
  bool largest = kTopkLargest.Bool(attrs);
  DLDataType dtype = kTopkDtype(attrs).cast<DLDataType>();
  int64_t count = std::min(wanted, length);
  auto top = [&](const ir::Expr& of, int64_t k, int dim) {
    return w->Write(kTopk, of, k, int64_t(dim), ffi::String("both"), largest, dtype);
  };
  ir::Expr own = top(x, count, axis + 1);
  ir::Expr offset = Offset(call, length, axis, rank + 1, dtype, w);
  ir::Expr positions = w->Write(kAdd, w->Field(own, 1), offset);
  ffi::Array<ir::Expr> shape = ir::ShapeOf(TensorTypeOf(whole));
  shape.Set(axis, ir::MakeInt(shards * count));
  ir::Expr candidates = w->Reshape(Gathered(w->Field(own, 0), axis, w), shape);
  ir::Expr best = top(candidates, wanted, axis);
  ir::Expr values = w->Field(best, 0);
  std::string returns = kTopkReturns.Text(attrs);
  if (returns == "values") return values;
  positions = w->Reshape(Gathered(positions, axis, w), shape);
  ir::Expr found = w->Write(kGatherElements, positions, w->Field(best, 1), int64_t(axis));
  return returns == "indices" ? found : ir::Expr(ir::MakeTuple({values, found}));
}

const AlgorithmTable kOrdering({{"relax.argmax", ArgReduce<&kArgmax, &kMax>},
                                {"relax.argmin", ArgReduce<&kArgmin, &kMin>},
                                {"relax.cumsum", Scan<&kCumsum, &kSum, &kAdd>},
                                {"relax.cumprod", Scan<&kCumprod, &kProd, &kMultiply>},
                                {"relax.topk", Topk}});

}  // namespace

}  // namespace expand
}  // namespace distir
