// Divides the shapes of global types by the number of shards.
#include "lower/local/local_types.h"

#include <tvm/ffi/error.h>

#include <numeric>
#include <vector>

#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/rewriter.h"
#include "ir/size_text.h"
#include "ir/symbolic.h"
#include "rules/factor/factor_rule.h"

namespace distir::lower {

namespace {

/*! \brief Shardings of the dimensions that are a single symbolic variable. */
struct Occurrence {
  ir::Var var;
  int64_t shards;
};

void CollectOfLeaf(const ir::Type& type, dialect::MeshTable* meshes, std::vector<Occurrence>* out) {
  ffi::Array<ir::Expr> dims;
  mesh::Sharding sharding;
  if (auto shape = ir::ShapeType::Cast(type); shape.defined()) {
    dims = shape.values().value_or(ffi::Array<ir::Expr>());
    sharding = mesh::Sharding::Replicated(static_cast<int>(dims.size()));
  } else {
    auto dtensor = ir::DTensorType::Cast(type);
    ir::TensorType tensor = dtensor.defined() ? dtensor.tensor_ty() : ir::TensorType::Cast(type);
    if (!tensor.defined() || !ir::HasKnownShape(tensor)) return;
    sharding = mesh::Sharding::Replicated(rules::ShardableRank(tensor));
    if (dtensor.defined()) sharding = meshes->ShardingOf(dtensor);
    dims = ir::ShapeOf(tensor);
  }
  for (size_t d = 0; d < dims.size(); ++d) {
    if (auto var = ir::Var::Cast(dims[d]); var.defined())
      out->push_back({var, mesh::NumShards(sharding.dims[d])});
  }
}

void Collect(const ir::Type& type, dialect::MeshTable* meshes, std::vector<Occurrence>* out) {
  ir::ForEachLeaf(type, [&](const ir::Type& leaf) { CollectOfLeaf(leaf, meshes, out); });
}

}  // namespace

LocalTypes::LocalTypes(const ir::Function& function, const std::string& function_name,
                       dialect::MeshTable* meshes, std::function<bool(const ir::Type&)> is_present)
    : function_name_(function_name), meshes_(*meshes), may_be_undefined_(is_present != nullptr) {
  std::vector<Occurrence> occurrences;
  for (const ir::Var& param : function.params()) {
    if (ir::PrimType::Is(param.ty())) known_.insert(param.get());
    if (!is_present || is_present(param.ty())) Collect(param.ty(), meshes, &occurrences);
  }
  std::unordered_set<const ffi::Object*> of_params;
  for (const Occurrence& occurrence : occurrences) of_params.insert(occurrence.var.get());
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    auto cast = ir::MatchCast::Cast(binding);
    if (!cast.defined() || (is_present && !is_present(cast.ty()))) return;
    std::vector<Occurrence> defined;
    Collect(cast.ty(), meshes, &defined);
    for (const Occurrence& occurrence : defined) {
      if (of_params.count(occurrence.var.get()) == 0) occurrences.push_back(occurrence);
    }
  });
  std::unordered_map<const ffi::Object*, int64_t> shards, most;
  for (const Occurrence& occurrence : occurrences) {
    known_.insert(occurrence.var.get());
    int64_t& all = shards.try_emplace(occurrence.var.get(), 1).first->second;
    all = std::lcm(all, occurrence.shards);
    int64_t& one = most.try_emplace(occurrence.var.get(), 1).first->second;
    one = std::max(one, occurrence.shards);
  }
  for (const Occurrence& occurrence : occurrences) {
    const ffi::Object* key = occurrence.var.get();
    if (shards[key] == 1 || replacements_.count(key) > 0) continue;
    if (shards[key] != most[key]) {
      TVM_FFI_THROW(ValueError) << "symbolic dimension `" << occurrence.var.name() << "` of `"
                                << function_name
                                << "` is sharded in ways that no parameter combines (" << most[key]
                                << " and " << shards[key] << " shards)";
    }
    ir::Var local = ir::MakeVar(occurrence.var.name(), occurrence.var.ty(), false);
    replacements_.emplace(key, ir::Multiply(local, shards[key]));
  }
}

ir::Expr LocalTypes::LocalValue(const ir::Expr& value) {
  if (may_be_undefined_) {
    ir::VisitVars(value, [this](const ir::Var& var) {
      if (known_.insert(var.get()).second) undefined_.push_back(var);
    });
  }
  if (replacements_.empty()) return value;
  return ir::SubstituteVars(value, [this](const ir::Var& var) {
    auto it = replacements_.find(var.get());
    return it == replacements_.end() ? ir::Expr() : it->second;
  });
}

ffi::Array<ir::Expr> LocalTypes::LocalShape(const ir::TensorType& type,
                                            const mesh::Sharding& sharding) {
  ffi::Array<ir::Expr> local;
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type);
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t shards = mesh::NumShards(sharding.dims[d]);
    if (ir::NeverDivides(shape[d], shards)) {
      TVM_FFI_THROW(ValueError) << "in `" << function_name_ << "`: dimension " << d << " of size "
                                << ir::SizeText(shape[d]) << " of " << ir::Print(type)
                                << " does not divide into " << shards << " shards";
    }
    local.push_back(ir::FloorDivide(LocalValue(shape[d]), shards));
  }
  return local;
}

ir::Type LocalTypes::Local(const ir::Type& type) {
  ir::Type& local = local_[type];  // a variable and the call that it is bound to share their type
  if (!local.defined()) local = MakeLocal(type);
  return local;
}

ir::Type LocalTypes::MakeLocal(const ir::Type& type) {
  return ir::MapLeaves(type, [this](const ir::Type& leaf) -> ir::Type {
    auto dtensor = ir::DTensorType::Cast(leaf);
    if (!dtensor.defined())
      return ir::MapDims(leaf, [this](const ir::Expr& dim) { return LocalValue(dim); });
    if (!ir::HasKnownShape(dtensor.tensor_ty())) return dtensor.tensor_ty();
    return LocalTensor(dtensor);
  });
}

ir::TensorType LocalTypes::LocalTensor(const ir::DTensorType& type) {
  const ir::TensorType& whole = type.tensor_ty();
  const mesh::Sharding& sharding = meshes_.ShardingOf(type);
  const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(whole);
  key_ = {Bits(whole.dtype())};
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t size = ir::StaticDim(shape[d]), shards = mesh::NumShards(sharding.dims[d]);
    if (size < 0 || size % shards != 0)
      return ir::MakeTensorType(LocalShape(whole, sharding), whole);
    key_.push_back(size / shards);
  }
  ir::TensorType& local = tensors_[key_];
  if (!local.defined()) local = ir::MakeTensorType(LocalShape(whole, sharding), whole);
  return local;
}

}  // namespace distir::lower
