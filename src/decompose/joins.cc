// Traces the operands of joins, and drops what only they have used.
#include "decompose/joins.h"

#include "dialect/operators/segment_exchange.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"

namespace distir::decompose {

void Joins::Note(const ir::Var& var, const ir::Call& call) {
  if (ir::IsOp(call.op(), "relax.dist.redistribute")) {
    parts_.NoteSame(var, call.args()[0]);
  } else if (dialect::IsSegmentExchange(call.op())) {
    // Segments of a call that was decomposed before, since it did not divide.
    dialect::SegmentMove move = dialect::MoveOf(call);
    int64_t filled = move.moved.target_size;
    for (const mesh::Segment& segment : move.segments) filled -= segment.count;
    if (move.segments.empty() || (filled > 0 && move.fill == dialect::kAnyFill)) return;
    parts_.NoteMoved(var, call.args()[0],
                     {move.moved.dim, std::move(move.segments), filled > 0 ? move.fill : ""});
  } else if (const auto movement = MovementOfJoin(call)) {
    parts_.NoteMoved(var, movement->of, {movement->dim, movement->segments});
  } else {
    parts_.Note(var, call, rules::StripDistribution(call.ty()));
  }
  if (parts_.Has(var)) noted_.emplace_back(var, call);
}

std::optional<Joins::JoinOfOne> Joins::MovementOfJoin(const ir::Call& call) const {
  const rules::Operator* record = rules::FindOperator(call.op());
  auto tuple = call.args().empty() ? ir::Tuple() : ir::Tuple::Cast(call.args()[0]);
  if (record == nullptr || record->joined_dim == nullptr || !tuple.defined()) return std::nullopt;
  const rules::OpView view = rules::ViewCall(call, rules::StripDistribution(call.ty()));
  JoinOfOne found{{}, record->joined_dim(view), {}};
  int64_t end = 0;
  for (size_t i = 0; i < tuple.fields().size(); ++i) {
    const int64_t extent = found.dim < 0 || !ir::HasKnownShape(view.operands[i])
                               ? -1
                               : rules::StaticSizes(view.operands[i])[found.dim];
    if (extent <= 0) return std::nullopt;
    rules::Part part = parts_.Of(tuple.fields()[i], found.dim, extent);
    if (i > 0 && !part.of.same_as(found.of)) return std::nullopt;
    found.of = part.of;
    for (mesh::Segment segment : part.segments) {
      segment.target += end;
      found.segments.push_back(segment);
    }
    end += extent;
  }
  return found;
}

void Joins::Add(const ir::Call& call, const rules::CallSharding& decided, int root) {
  const rules::Operator* record = rules::FindOperator(call.op());
  if (record == nullptr || record->joined_dim == nullptr) return;
  auto tuple = ir::Tuple::Cast(call.args()[0]);
  if (!tuple.defined()) return;
  const rules::OpView view = rules::ViewCall(call, rules::StripDistribution(call.ty()));
  const int dim = record->joined_dim(view);
  const mesh::AxisList& axes = decided.results[0].dims[dim];
  Join join;
  for (size_t i = 0; i < tuple.fields().size(); ++i) {
    const ir::Expr& operand = tuple.fields()[i];
    mesh::Sharding sharding = decided.operands[i];
    const int64_t extent = rules::StaticSizes(view.operands[i])[dim];
    rules::Part part = parts_.Of(operand, dim, extent);
    mesh::Sharding wanted = sharding;
    wanted.dims[dim] = axes;
    if (!part.of.same_as(operand) && !axes.empty() && IsShardedSo(part.of, wanted, root)) {
      sharding = wanted;
      PassOver(operand, part.of);
    } else {
      part = {operand, {{0, 0, 1, extent}}};
    }
    join.operands.push_back(part.of);
    join.shardings.push_back(sharding);
    join.parts.push_back(std::move(part.segments));
  }
  found_.emplace(call.get(), std::move(join));
}

bool Joins::IsShardedSo(const ir::Expr& tensor, const mesh::Sharding& sharding, int root) {
  auto type = ir::DTensorType::Cast(tensor.ty());
  return type.defined() && meshes_.RootOf(type) == root &&
         mesh::SameLayout(meshes_.Root(root), meshes_.ShardingOf(type), sharding);
}

void Joins::AddMoved(const ir::Call& call, const rules::CallSharding& decided, int root) {
  const rules::Operator* record = rules::FindOperator(call.op());
  if (record == nullptr || record->movement == nullptr) return;
  const rules::OpView view = rules::ViewCall(call, rules::StripDistribution(call.ty()));
  if (!ir::HasKnownShape(view.operands[0]) || !ir::HasKnownShape(view.results[0])) return;
  auto movement = record->movement(view);
  if (!movement) return;
  const int dim = movement->dim;
  const ir::Expr operand = call.args()[0];
  const mesh::Sharding& sharding = decided.results[0];
  // One with fewer elements than shards is summed.
  if (sharding.dims[dim].empty() || sharding.dims[dim] != decided.operands[0].dims[dim]) return;
  rules::Part part = parts_.Of({operand, std::move(movement->segments), std::move(movement->fill)},
                               dim, rules::Filled::kYes);
  if (part.of.same_as(operand) || part.segments.empty() ||
      !IsShardedSo(part.of, decided.operands[0], root))
    return;
  PassOver(operand, part.of);
  const int64_t size = rules::StaticSizes(view.results[0])[dim];
  const std::string fill = part.fill.empty() ? dialect::kAnyFill : part.fill;
  moved_.emplace(call.get(),
                 Moved{part.of, decided.operands[0], dim, size, std::move(part.segments), fill});
}

void Joins::Finish(const ir::Function& function) {
  if (passed_over_.empty()) return;
  auto uses = ir::CountUses(function);
  for (auto noted = noted_.rbegin(); noted != noted_.rend(); ++noted) {
    const auto& [var, call] = *noted;
    auto passed_over = passed_over_.find(var.get());
    if (passed_over == passed_over_.end() || passed_over->second < uses[var.get()]) continue;
    unused_.insert(var.get());
    if (const Moved* moved = FindMoved(call)) {
      ++passed_over_[moved->of.get()];
    } else if (const Join* join = Find(call)) {
      for (const ir::Expr& operand : join->operands) ++passed_over_[operand.get()];
    } else {
      ++passed_over_[call.args()[0].get()];
    }
  }
}

const Join* Joins::Find(const ir::Call& call) const {
  auto it = found_.find(call.get());
  return it == found_.end() ? nullptr : &it->second;
}

const Moved* Joins::FindMoved(const ir::Call& call) const {
  auto it = moved_.find(call.get());
  return it == moved_.end() ? nullptr : &it->second;
}

}  // namespace distir::decompose
