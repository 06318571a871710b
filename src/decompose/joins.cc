// Traces the operands of joins, and drops what only they have used.
#include "decompose/joins.h"

#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"

namespace distir::decompose {

void Joins::Note(const ir::Var& var, const ir::Call& call) {
  if (ir::IsOp(call.op(), "relax.dist.redistribute")) {
    parts_.NoteSame(var, call.args()[0]);
  } else {
    parts_.Note(var, call, rules::StripDistribution(call.ty()));
  }
  if (parts_.Has(var)) noted_.emplace_back(var, call);
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
    auto type = ir::DTensorType::Cast(part.of.ty());
    bool moves = !part.of.same_as(operand) && type.defined() && !axes.empty() &&
                 meshes_.RootOf(type) == root;
    if (moves) {
      mesh::Sharding wanted = sharding;
      wanted.dims[dim] = axes;
      moves = mesh::SameLayout(meshes_.Root(root), meshes_.ShardingOf(type), wanted);
      if (moves) sharding = wanted;
    }
    if (moves) {
      ++passed_over_[operand.get()];
    } else {
      part = {operand, {{0, 0, 1, extent}}};
    }
    join.operands.push_back(part.of);
    join.shardings.push_back(sharding);
    join.parts.push_back(std::move(part.segments));
  }
  found_.emplace(call.get(), std::move(join));
}

void Joins::Finish(const ir::Function& function) {
  if (passed_over_.empty()) return;
  auto uses = ir::CountUses(function);
  for (auto noted = noted_.rbegin(); noted != noted_.rend(); ++noted) {
    const auto& [var, call] = *noted;
    auto passed_over = passed_over_.find(var.get());
    if (passed_over == passed_over_.end() || passed_over->second < uses[var.get()]) continue;
    unused_.insert(var.get());
    ++passed_over_[call.args()[0].get()];
  }
}

const Join* Joins::Find(const ir::Call& call) const {
  auto it = found_.find(call.get());
  return it == found_.end() ? nullptr : &it->second;
}

}  // namespace distir::decompose
