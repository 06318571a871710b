// combine_collectives: small collectives of one kind, over the same devices, become one.
//
//     c = R.dist.all_reduce(a, mesh[0], "R", ..)       e = R.dist.all_reduce((a, b), mesh[0],
//     d = R.dist.all_reduce(b, mesh[0], "R", ..)   ->      ["R", "R"], ..)
//                                                      c = e[0]; d = e[1]
//
// Combined collectives have the same kind, device mesh, axes, reduction and element type, and
// together at most Options::combine_bytes of arguments; above that, time is bandwidth, and
// combining only costs copies. Candidates are independent if equally many collectives lie on the
// longest way to each; since every way between two levels leads upwards, combining within a level
// makes no cycle. Bindings keep their order, except that what a combined collective needs comes
// before it.
#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "optimize/optimization.h"
#include "rules/factor/factor_rule.h"
#include "support/pointer_map.h"

namespace distir::optimize {

namespace {

struct Group {
  std::vector<EditableBinding*> members;  // in program order
  double bytes = 0;
};

class Combining {
 public:
  Combining(EditableFunction* editable, Program* program, Tally* tally)
      : editable_(*editable), program_(*program), tally_(*tally) {}

  void Run(Body* body) {
    for (Block& block : body->blocks) {
      for (const auto& binding : block.bindings) {
        if (!binding->true_branch) continue;
        Run(binding->true_branch.get());
        Run(binding->false_branch.get());
      }
      RunBlock(&block);
    }
  }

 private:
  /*! \brief Between which barriers a binding is, and with how many collectives on the longest way
   * to and including it. */
  struct Position {
    int segment, level;
  };
  using Axes = std::vector<std::tuple<int, int64_t, int64_t>>;
  using Key = std::tuple<int, int, mesh::CollectiveKind, const ffi::Object*, Axes, mesh::Reduction,
                         int, int>;

  void RunBlock(Block* block) {
    groups_.clear();
    group_of_.clear();
    positions_ = PointerMap<Position>();
    std::map<Key, Group*> open;
    int segment = 0;
    for (const auto& each : block->bindings) {
      EditableBinding* binding = each.get();
      if (IsBarrier(*binding)) {
        segment += 2;  // a segment of its own is between: nothing moves past it
        continue;
      }
      int level = LevelOf(binding, segment);
      auto step = Candidate(binding);
      positions_[binding] = {segment, level + (step ? 1 : 0)};
      if (!step) continue;
      auto type = ir::DTensorType::Cast(binding->var.ty());
      double bytes = LocalBytes(type.tensor_ty(), step->source);
      if (bytes * 2 > static_cast<double>(program_.options.combine_bytes)) {
        tally_.Skip("too large");
        continue;
      }
      Group*& group = open[KeyOf(binding, *step, segment, level)];
      if (group == nullptr ||
          group->bytes + bytes > static_cast<double>(program_.options.combine_bytes)) {
        groups_.push_back(std::make_unique<Group>());
        group = groups_.back().get();
      }
      group->members.push_back(binding);
      group->bytes += bytes;
    }
    bool any = false;
    for (const auto& group : groups_) {
      if (group->members.size() < 2) continue;
      any = true;
      ++tally_.matched;
      for (EditableBinding* member : group->members) group_of_[member] = group.get();
    }
    if (any) Write(block);
  }

  /*! \brief The most collectives on a way to this binding within its segment. */
  int LevelOf(const EditableBinding* binding, int segment) {
    int level = 0;
    VisitOperands(binding, [&](EditableBinding* definition) {
      const Position* found = positions_.Find(definition);
      if (found != nullptr && found->segment == segment) level = std::max(level, found->level);
    });
    return level;
  }

  void VisitOperands(const EditableBinding* binding,
                     const std::function<void(EditableBinding*)>& visit) {
    VisitVarsOf(binding->value, [&](const ir::Expr& var) {
      EditableBinding* definition = editable_.DefinitionOf(var);
      if (definition != nullptr && definition->block == binding->block) visit(definition);
    });
  }

  std::optional<Resharding> Candidate(const EditableBinding* binding) {
    auto step = ReadResharding(binding->value, program_.meshes);
    if (!step || !dialect::CanCombine(step->kind) || binding->cast.defined()) return std::nullopt;
    auto type = ir::DTensorType::Cast(binding->var.ty());
    for (int64_t size : rules::StaticSizes(type.tensor_ty())) {
      if (size >= 0) continue;
      tally_.Skip("symbolic size");
      return std::nullopt;
    }
    return step;
  }

  Key KeyOf(const EditableBinding* binding, const Resharding& step, int segment, int level) {
    auto type = ir::DTensorType::Cast(binding->var.ty());
    mesh::AxisList axes = step.source.partial;
    if (axes.empty()) {
      axes = mesh::DescribeStep(step.kind, program_.meshes->Root(step.root), step.source,
                                step.target, {})
                 .axes;
    }
    Axes key;
    for (const mesh::AxisRef& ref : axes) key.emplace_back(ref.axis, ref.pre_size, ref.size);
    // The order of a reduce-scatter's axes is that of its attribute.
    for (int axis : dialect::ReduceAxes(ir::Call::Cast(binding->value)))
      key.emplace_back(axis, 0, 0);
    DLDataType dtype = type.tensor_ty().dtype();
    return {segment,        level,
            step.kind,      type.device_mesh().get(),
            std::move(key), step.source.reduction,
            dtype.code,     dtype.bits * dtype.lanes};
  }

  // ---- writing

  void Write(Block* block) {
    std::vector<EditableBinding*> bindings;
    for (const auto& binding : block->bindings) bindings.push_back(binding.get());
    order_.clear();
    placed_.clear();
    for (EditableBinding* binding : bindings) Place(binding);
    editable_.Reorder(block, order_);
  }

  void Place(EditableBinding* binding) {
    if (!placed_.insert({binding, true}).second) return;
    auto group = group_of_.find(binding);
    if (group == group_of_.end()) {
      VisitOperands(binding, [this](EditableBinding* definition) { Place(definition); });
      order_.push_back(binding);
      return;
    }
    const std::vector<EditableBinding*>& members = group->second->members;
    for (EditableBinding* member : members) placed_.insert({member, true});
    for (EditableBinding* member : members)
      VisitOperands(member, [this](EditableBinding* definition) { Place(definition); });
    ffi::Array<ir::Expr> values;
    std::vector<ir::DTensorType> targets;
    for (EditableBinding* member : members) {
      values.push_back(ir::Call::Cast(member->value).args()[0]);
      targets.push_back(ir::DTensorType::Cast(member->var.ty()));
    }
    auto first = ir::Call::Cast(members[0]->value);
    ir::Var combined = editable_.InsertBefore(
        members[0], members[0]->var.name(),
        dialect::MakeCombinedCollective(*dialect::DTensorCollective(first.op()), values, targets,
                                        dialect::ReduceAxes(first), dialect::ReductionOf(first)));
    EditableBinding* inserted = editable_.DefinitionOf(combined);
    placed_.insert({inserted, true});
    order_.push_back(inserted);
    for (size_t i = 0; i < members.size(); ++i) {
      editable_.SetValue(members[i], ir::MakeTupleGetItem(combined, static_cast<int>(i)));
      order_.push_back(members[i]);
    }
  }

  EditableFunction& editable_;
  Program& program_;
  Tally& tally_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::unordered_map<const EditableBinding*, Group*> group_of_;
  PointerMap<Position> positions_;  // of bindings that are no barriers
  std::unordered_map<const EditableBinding*, bool> placed_;
  std::vector<EditableBinding*> order_;
};

}  // namespace

void CombineCollectives(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions)
    Combining(function.editable.get(), program, tally).Run(function.editable->body());
}

}  // namespace distir::optimize
