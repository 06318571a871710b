// Brings expressions to wanted placements: reuse, new constants, redistribution.
#include "propagation/emission/placement_rewriter.h"

#include <tvm/ffi/error.h>

#include "dialect/operators/collective.h"
#include "dialect/operators/manual.h"
#include "dialect/placement.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "rules/call/infer_type.h"
#include "rules/factor/factor_rule.h"
#include "support/error.h"

namespace distir::propagation {

mesh::Sharding Replica(const ir::Expr& tensor) {
  auto type = ir::TensorType::Cast(rules::StripDistribution(tensor.ty()));
  return mesh::Sharding::Replicated(rules::ShardableRank(type));
}

void PlacementRewriter::LeaveScope() {
  for (; log_.size() > scopes_.back(); log_.pop_back()) redistributed_[log_.back()].pop_back();
  scopes_.pop_back();
}

// ---- placing

ir::Expr PlacementRewriter::Placed(const ir::Expr& expr, const ir::Type& wanted, bool exact) {
  return PlacedValue(ir::Constant::Is(expr) ? expr : Rewrite(expr), wanted, exact);
}

ir::Expr PlacementRewriter::PlacedValue(const ir::Expr& value, const ir::Type& wanted, bool exact) {
  if (auto tuple_ty = ir::TupleType::Cast(wanted); tuple_ty.defined()) {
    if (!ir::Tuple::Is(value) && FitsAll(value.ty(), tuple_ty, exact)) return value;
    ffi::Array<ir::Expr> fields;
    for (size_t i = 0; i < tuple_ty.fields().size(); ++i) {
      fields.push_back(PlacedValue(Field(value, static_cast<int>(i)), tuple_ty.fields()[i], exact));
    }
    return ir::MakeTuple(fields);
  }
  auto target = ir::DTensorType::Cast(wanted);
  if (!target.defined()) return value;
  if (ir::Constant::Is(value) && !ir::DTensorType::Is(value.ty())) {
    ir::Expr constant = PlacedConstant(value, target.device_mesh());
    if (dialect::SamePlacement(ir::DTensorType::Cast(constant.ty()), target)) return constant;
    return Redistributed(constant, target);
  }
  if (Fits(value.ty(), target, exact)) return value;
  return Redistributed(value, target);
}

ir::Expr PlacementRewriter::PlacedOn(const ir::Expr& arg, const ir::DeviceMesh& view, int root,
                                     Decided* decided) {
  if (const ir::Tuple* tuple = ir::Tuple::As(arg)) {
    ffi::Array<ir::Expr> fields;
    for (const ir::Expr& field : tuple->fields())
      fields.push_back(PlacedOn(field, view, root, decided));
    return ir::MakeTuple(fields);
  }
  ir::Expr value = ir::Constant::Is(arg) ? arg : Rewrite(arg);
  // Most arguments are where they should be; that is seen without making a type.
  if (const ir::DTensorType* have = ir::DTensorType::As(value.ty());
      have != nullptr && have->device_mesh().same_as(view)) {
    const ir::Placement& wanted = decided->Peek().placement;
    if (wanted.defined() && dialect::SamePlacement(have->placement(), wanted)) {
      decided->Take();
      return value;
    }
  }
  return PlacedValue(value, TypeOn(arg.ty(), view, root, decided), true);
}

ir::Type PlacementRewriter::TypeOn(const ir::Type& type, const ir::DeviceMesh& view, int root,
                                   Decided* decided) {
  return ir::MapLeaves(type, [&](const ir::Type& leaf) -> ir::Type {
    if (!ir::TensorType::Is(leaf) && !ir::DTensorType::Is(leaf)) return leaf;
    auto tensor = ir::TensorType::Cast(rules::StripDistribution(leaf));
    const DecidedTensor& wanted = decided->Take();
    if (!wanted.placement.defined()) return meshes_.TypeOf(tensor, root, wanted.sharding);
    return ir::MakeDTensorType(tensor, view, wanted.placement);
  });
}

ir::Expr PlacementRewriter::PlacedConstant(const ir::Expr& constant, const ir::DeviceMesh& view) {
  auto type = ir::TensorType::Cast(rules::StripDistribution(constant.ty()));
  std::vector<int> replica(view.shape().size(), -1);
  return ir::MakeTensorConstant(ir::Constant::Cast(constant).value(),
                                ir::MakeDTensorType(type, view, ir::MakePlacement(replica)));
}

void PlacementRewriter::BindPlaced(const ir::Var& var, const ir::Expr& value,
                                   const ir::Type& wanted) {
  auto target = ir::DTensorType::Cast(wanted);
  bool is_new = ir::Var::Is(value) && target.defined() && !Fits(value.ty(), target, false) &&
                !FindRedistributed(value, target).defined();
  if (!is_new) return Alias(var, PlacedValue(value, wanted, false));
  ir::Var fresh = Bind(var, Moved(value, target), target);
  KeepRedistributed(value, target, fresh);
}

void PlacementRewriter::BindRedistributed(const ir::Var& var, const ir::Expr& value,
                                          const ir::DTensorType& wanted) {
  Bind(var, Moved(value, wanted), wanted);
}

// ---- what is there

void PlacementRewriter::CollectPlaced(const ir::Expr& arg, std::vector<ir::DTensorType>* out) {
  if (const ir::Tuple* tuple = ir::Tuple::As(arg)) {
    for (const ir::Expr& field : tuple->fields()) CollectPlaced(field, out);
  } else if (ir::Constant::Is(arg)) {
    if (ir::TensorType::Is(arg.ty()) || ir::DTensorType::Is(arg.ty()))
      out->push_back(ir::DTensorType());
  } else if (ir::Var::Is(arg) || ir::TupleGetItem::Is(arg)) {
    dialect::CollectDTensorTypes(Rewrite(arg).ty(), out);
  }
}

bool PlacementRewriter::Fits(const ir::Type& have, const ir::DTensorType& wanted, bool exact) {
  auto dtensor = ir::DTensorType::Cast(have);
  if (!dtensor.defined()) return false;
  if (dialect::SamePlacement(dtensor, wanted)) return true;
  if (exact) return false;
  const int root = meshes_.RootOf(dtensor);
  return root == meshes_.RootOf(wanted) &&
         mesh::SameLayout(meshes_.Root(root), meshes_.ShardingOf(dtensor),
                          meshes_.ShardingOf(wanted));
}

bool PlacementRewriter::FitsAll(const ir::Type& have, const ir::TupleType& wanted, bool exact) {
  auto tuple = ir::TupleType::Cast(have);
  for (size_t i = 0; i < wanted.fields().size(); ++i) {
    if (auto nested = ir::TupleType::Cast(wanted.fields()[i]); nested.defined()) {
      if (!FitsAll(tuple.fields()[i], nested, exact)) return false;
    } else if (auto target = ir::DTensorType::Cast(wanted.fields()[i]); target.defined()) {
      if (!Fits(tuple.fields()[i], target, exact)) return false;
    }
  }
  return true;
}

ir::Expr PlacementRewriter::Field(const ir::Expr& value, int index) {
  if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) return tuple.fields()[index];
  return Emit("lv", ir::MakeTupleGetItem(value, index));
}

// ---- redistributions

ir::Call PlacementRewriter::Moved(const ir::Expr& value, const ir::DTensorType& target) {
  auto source = ir::DTensorType::Cast(value.ty());
  const int from = source.defined() ? meshes_.RootOf(source) : meshes_.RootOf(target);
  const int to = meshes_.RootOf(target);
  if (from == to) return dialect::MakeRedistribute(value, target);
  const std::string name =
      ir::Var::Is(value) ? std::string(ir::Var::Cast(value).name()) : "a value";
  if (const dialect::ManualRegion* region = meshes_.RegionBetween(from, to)) {
    mesh::Sharding outside = meshes_.ShardingOf(target);
    for (mesh::AxisList& axes : outside.dims) axes = region->Outside(axes);
    const ir::DTensorType outer_ty = meshes_.TypeOf(target.tensor_ty(), from, outside);
    const ir::Expr entering = Fits(source, outer_ty, false)
                                  ? value
                                  : Emit(name, dialect::MakeRedistribute(value, outer_ty));
    return dialect::MakeImplicitEntry(entering, *region, target, &meshes_);
  }
  const dialect::ManualRegion* region = meshes_.RegionOf(from);
  DISTIR_REQUIRE(region == nullptr, ValueError)
      << "`" << name << "` is a value of a manual region over "
      << mesh::ToString(region->manual, meshes_.Root(region->outer))
      << " and is used outside of it; let it leave the region first, as a result of the function "
      << "that dx.manual is given";
  DISTIR_REQUIRE(meshes_.RegionOf(to) == nullptr, ValueError)
      << "`" << name << "` lies on " << meshes_.MeshText(source.device_mesh())
      << " and is used in a manual region of "
      << mesh::ToString(meshes_.Root(meshes_.DevicesOf(to))) << "; redistribute it first";
  return dialect::MakeRedistribute(value, target);
}

ir::Expr PlacementRewriter::Redistributed(const ir::Expr& value, const ir::DTensorType& target) {
  if (ir::Var known = FindRedistributed(value, target); known.defined()) return known;
  ir::Expr argument = value;
  if (ir::TupleGetItem::Is(value)) argument = Emit("lv", value);
  ffi::String name = ir::Var::Is(argument) ? ir::Var::Cast(argument).name() : ffi::String("lv");
  ir::Var var = Emit(name, Moved(argument, target));
  KeepRedistributed(value, target, var);
  return var;
}

ir::Var PlacementRewriter::FindRedistributed(const ir::Expr& value,
                                             const ir::DTensorType& target) const {
  auto known = redistributed_.find(value.get());
  if (known == redistributed_.end()) return ir::Var();
  for (const auto& [type, var] : known->second) {
    if (dialect::SamePlacement(type, target)) return var;
  }
  return ir::Var();
}

void PlacementRewriter::KeepRedistributed(const ir::Expr& value, const ir::DTensorType& target,
                                          const ir::Var& var) {
  if (!ir::Var::Is(value)) return;
  redistributed_[value.get()].emplace_back(target, var);
  log_.push_back(value.get());
}

}  // namespace distir::propagation
