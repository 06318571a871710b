// Lowers operator calls: sizes that attributes and arguments state become those of the shard.
#include "lower/spmd/local_operator.h"

#include "dialect/operators/local_view.h"
#include "ir/build.h"
#include "ir/make_operators.h"
#include "ir/operator_attrs.h"
#include "ir/symbolic.h"
#include "rules/call/stated_sizes.h"
#include "rules/factor/axes.h"
#include "rules/operator.h"

namespace distir::lower {

namespace {

/*! \brief True if a permutation only moves dimensions of size 1, as those of a worker's shards are:
 * then it copies nothing. */
bool KeepsOrder(const ir::Call& permute) {
  auto type = ir::TensorType::Cast(permute.args()[0].ty());
  if (!ir::HasKnownShape(type)) return false;
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type);
  auto axes =
      rules::ReadAxes(ir::attrs::kPermuteDimsAxes(permute.attrs()), static_cast<int>(shape.size()));
  if (!axes) return false;
  int last = -1;
  for (int axis : *axes) {
    if (ir::StaticDim(shape[axis]) == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

ffi::Array<ir::Type> LocalAll(const ir::NodeArray<ir::Type>& types, LocalTypes* local) {
  if (types.empty()) return types;
  ffi::Array<ir::Type> all;
  for (const ir::Type& type : types) all.push_back(local->Local(type));
  return all;
}

}  // namespace

ir::Expr LocalOperatorCall(const ir::Call& call, const ir::Type& result_ty,
                           ffi::Array<ir::Expr> args, LocalTypes* types) {
  const ir::Expr op =
      dialect::IsLocalView(call.op()) ? ir::Expr(dialect::KernelCallOf(call)) : call.op();
  const rules::Operator* record = rules::FindOperator(call.op());
  if (auto result = ir::DTensorType::Cast(result_ty);
      record != nullptr && record->shape_argument >= 0 && result.defined() &&
      ir::HasKnownShape(result.tensor_ty())) {
    args.Set(record->shape_argument, ir::TensorType::Cast(types->Local(result)).shape());
  }
  const ffi::Array<ir::Type> ty_args = LocalAll(call.ty_args(), types);
  const ir::Type type = types->Local(call.ty());
  const ir::Call local = ir::MakeCall(type, op, args, call.attrs(), ty_args, call.span());
  if (ir::IsOp(call.op(), "relax.permute_dims") && KeepsOrder(local)) {
    ir::Expr reshaped =
        ir::make::kReshape(args[0], ir::TensorType::Cast(type).shape()).cast<ir::Expr>();
    ir::SetType(reshaped, type);
    return reshaped;
  }
  return rules::WithStatedSizes(local, call);
}

ir::Expr LocalCacheCall(const ir::Call& call, dialect::CacheCallKind kind,
                        const ir::Type& result_ty, ffi::Array<ir::Expr> args, LocalTypes* types,
                        dialect::MeshTable* meshes) {
  auto like = ir::DTensorType::Cast(kind == dialect::CacheCallKind::kCreate ? call.args()[0].ty()
                                                                            : result_ty);
  auto shape = args.size() > 1 ? ir::ShapeExpr::Cast(call.args()[1]) : ir::ShapeExpr();
  if (like.defined() && shape.defined()) {
    auto whole = ir::MakeTensorType(shape.values(), like.tensor_ty());
    args.Set(1, ir::MakeShape(types->LocalShape(whole, meshes->ShardingOf(like))));
  }
  const ffi::Array<ir::Type> ty_args = LocalAll(call.ty_args(), types);
  return ir::MakeCall(types->Local(call.ty()), dialect::LocalCacheCallee(kind), args, call.attrs(),
                      ty_args, call.span());
}

}  // namespace distir::lower
