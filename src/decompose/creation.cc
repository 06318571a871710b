// Finds values made by every device of which each uses a shard, and makes the shards instead.
#include "decompose/creation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ir/leaves.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/call/ways.h"
#include "rules/registry.h"

namespace distir::decompose {

namespace {

using mesh::AxisList;
using mesh::Sharding;

/*! \brief True if every shard is one element: then no whole is smaller than the positions of all.
 */
bool IsOfSingleElements(const ir::TensorType& type, const Sharding& sharding) {
  rules::Sizes sizes = rules::StaticSizes(type);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != mesh::NumShards(sharding.dims[d])) return false;
  }
  return true;
}

/*! \brief Sharding of the result that is made instead of `whole` for `wanted`; null if a
 * redistribution of the whole does as well. */
std::optional<Sharding> MadeSharding(const std::vector<bool>& made, Sharding whole,
                                     const Sharding& wanted) {
  AxisList used;
  for (const AxisList& dim : whole.dims) used.insert(used.end(), dim.begin(), dim.end());
  bool any = false;
  for (size_t d = 0; d < made.size(); ++d) {
    if (!made[d] || !whole.dims[d].empty()) continue;
    whole.dims[d] = mesh::PrefixDisjointFrom(wanted.dims[d], used);
    any = any || !whole.dims[d].empty();
  }
  if (!any) return std::nullopt;
  return whole;
}

bool IsJoin(const ir::Call& call) {
  const rules::Operator* record = rules::FindOperator(call.op());
  return record != nullptr && record->joined_dim != nullptr;
}

/*! \brief True if shards of a dimension of the result can be made of what operands have. */
bool IsMade(const ir::Call& call, const rules::FactorRule& rule, size_t dim, int64_t shards) {
  const rules::FactorList& factors = rule.results[0][dim];
  return rule.IsMade(0, dim) || (IsJoin(call) && factors.size() == 1 &&
                                 rules::HasOnlyShortOperands(rule, factors[0], shards));
}

/*! \brief Shardings of the tensors among a call's arguments, tuples flattened. */
std::vector<Sharding> ShardingsOfArguments(const ir::Call& call, dialect::MeshTable* meshes) {
  std::vector<Sharding> shardings;
  for (const ir::Expr& arg : call.args()) {
    ir::ForEachLeaf(arg.ty(), [&](const ir::Type& leaf) {
      if (auto placed = ir::DTensorType::Cast(leaf); placed.defined()) {
        shardings.push_back(meshes->ShardingOf(placed));
      } else if (auto tensor = ir::TensorType::Cast(leaf); tensor.defined()) {
        shardings.push_back(Sharding::Replicated(rules::ShardableRank(tensor)));
      }
    });
  }
  return shardings;
}

std::optional<Creation> Create(const ir::Call& call, const ir::DTensorType& target,
                               dialect::MeshTable* meshes) {
  rules::FactorRule rule = rules::RuleOf(rules::ViewCall(call, call.ty()));
  auto type = ir::TensorType::Cast(rules::StripDistribution(call.ty()));
  const int root = meshes->RootOf(target);
  const Sharding& wanted = meshes->ShardingOf(target);
  // Shards are put together by a reshape, which is not known to keep those of a symbolic size.
  std::vector<bool> made;
  for (size_t d = 0; d < rule.results[0].size(); ++d)
    made.push_back(IsMade(call, rule, d, mesh::NumShards(wanted.dims[d])) &&
                   ir::StaticDim(ir::ShapeOf(type)[d]) >= 0);
  if (std::find(made.begin(), made.end(), true) == made.end()) return std::nullopt;
  Sharding whole = Sharding::Replicated(static_cast<int>(made.size()));
  if (auto have = ir::DTensorType::Cast(call.ty()); have.defined()) {
    if (meshes->RootOf(have) != root) return std::nullopt;
    whole = meshes->ShardingOf(have);
  }
  std::optional<Sharding> sharding = MadeSharding(made, whole, wanted);
  if (!sharding || IsOfSingleElements(type, *sharding)) return std::nullopt;
  for (size_t d = 0; d < made.size(); ++d) {
    if (ir::NeverDivides(ir::ShapeOf(type)[d], mesh::NumShards(sharding->dims[d])))
      return std::nullopt;
  }
  if (!meshes->PlacementOn(target.device_mesh(), root, *sharding).defined()) return std::nullopt;
  rules::CallSharding decided;
  decided.factors.resize(rule.factors.size());
  rules::Project(rule, rule.results[0], *sharding, &decided.factors);
  decided.results = {*sharding};
  if (IsJoin(call)) decided.operands = ShardingsOfArguments(call, meshes);
  return Creation{call,
                  FindDecomposition(call.op()),
                  std::move(rule),
                  std::move(decided),
                  target.device_mesh(),
                  nullptr};
}

}  // namespace

Creations::Creations(const ir::Function& function, dialect::MeshTable* meshes) {
  std::unordered_map<const ffi::Object*, ir::Call> calls;  // of which pieces can be made
  std::unordered_map<const ffi::Object*, int> in_pieces;
  ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
    ir::Call call = ir::BoundCall(binding);
    if (!call.defined()) return;
    if (!ir::IsOp(call.op(), "relax.dist.redistribute")) {
      bool is_tensor = ir::TensorType::Is(call.ty()) || ir::DTensorType::Is(call.ty());
      if (is_tensor && FindDecomposition(call.op()) != nullptr)
        calls.emplace(binding.var().get(), call);
      return;
    }
    const ffi::Object* var = call.args()[0].get();
    auto made = calls.find(var);
    if (made == calls.end()) return;
    if (auto creation = Create(made->second, ir::DTensorType::Cast(call.ty()), meshes)) {
      creation->var = var;
      found_.emplace(call.get(), std::move(*creation));
      ++in_pieces[var];
    }
  });
  if (found_.empty()) return;
  auto uses = ir::CountUses(function);
  // Operands of a join are passed over once.
  for (auto each = found_.begin(); each != found_.end();) {
    const ffi::Object* var = each->second.var;
    if (IsJoin(each->second.call) && uses[var] > 1) {
      --in_pieces[var];
      each = found_.erase(each);
    } else {
      ++each;
    }
  }
  for (const auto& [var, call] : calls) {
    if (uses[var] == in_pieces[var]) only_in_pieces_.insert(var);
  }
}

const Creation* Creations::Find(const ir::Call& redistribution) const {
  auto it = found_.find(redistribution.get());
  return it == found_.end() ? nullptr : &it->second;
}

}  // namespace distir::decompose
