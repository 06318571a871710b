// combine_collectives: small collectives of one kind, over the same devices, become one.
//
//     c = R.dist.all_reduce(a, mesh[0], "R", ..)       e = R.dist.all_reduce((a, b), mesh[0],
//     d = R.dist.all_reduce(b, mesh[0], "R", ..)   ->      ["R", "R"], ..)
//                                                      c = e[0]; d = e[1]
//
// Combined collectives have the same kind, device mesh, axes, reduction and element type, and
// together at most Options::combine_bytes of arguments; above that, time is bandwidth, and
// combining only costs copies. A collective has a level, above those of all collectives on a way to
// it; since every way between two levels leads upwards, combining within a level makes no cycle. It
// is the number of collectives on the longest way to it, or a later one at which it can be
// combined, below those of all that need it. Bindings keep their order, except that what a combined
// collective needs comes before it.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
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
  using Key =
      std::tuple<int, mesh::CollectiveKind, const ffi::Object*, Axes, mesh::Reduction, int, int>;
  struct Small {
    EditableBinding* binding;
    Key key;
    double bytes;
    bool is_small;
  };

  void RunBlock(Block* block) {
    groups_.clear();
    group_of_.clear();
    positions_ = PointerMap<Position>();
    std::vector<Small> candidates;
    std::vector<EditableBinding*> movable;  // all but barriers
    int segment = 0;
    for (const auto& each : block->bindings) {
      EditableBinding* binding = each.get();
      if (IsBarrier(*binding)) {
        segment += 2;  // a segment of its own is between: nothing moves past it
        continue;
      }
      movable.push_back(binding);
      int level = LevelOf(binding, segment);
      auto step = Candidate(binding);
      positions_[binding] = {segment, level + (step ? 1 : 0)};
      if (!step) continue;
      auto type = ir::DTensorType::Cast(binding->var.ty());
      double bytes = LocalBytes(type.tensor_ty(), step->source);
      const bool is_small = bytes * 2 <= static_cast<double>(program_.options.combine_bytes);
      if (!is_small) tally_.Skip("too large");
      candidates.push_back({binding, KeyOf(binding, *step, segment), bytes, is_small});
    }
    Assign(candidates, movable);
    bool any = false;
    for (const auto& group : groups_) {
      if (group->members.size() < 2) continue;
      any = true;
      ++tally_.matched;
      for (EditableBinding* member : group->members) group_of_[member] = group.get();
    }
    if (any) Write(block);
  }

  /*! \brief Puts collectives into groups, those of the highest levels first. Each may be at its own
   * level, or at a later one that is before all that read it; of the groups there that have room
   * for it, it joins the smallest, of which least is copied. */
  void Assign(const std::vector<Small>& candidates, const std::vector<EditableBinding*>& movable) {
    constexpr int kLast = std::numeric_limits<int>::max();
    std::unordered_map<const EditableBinding*, const Small*> small_of;
    for (const Small& each : candidates) small_of[each.binding] = &each;
    // Readers of a collective come before it.
    std::vector<EditableBinding*> order(movable.rbegin(), movable.rend());
    std::stable_sort(order.begin(), order.end(), [&](EditableBinding* a, EditableBinding* b) {
      const int level_a = positions_.Find(a)->level, level_b = positions_.Find(b)->level;
      return level_a != level_b ? level_a > level_b : small_of.count(a) < small_of.count(b);
    });
    std::unordered_map<const EditableBinding*, int> latest;  // levels at which it has to be known
    std::map<Key, std::map<int, Group*>> open;
    for (EditableBinding* binding : order) {
      int needed = latest.try_emplace(binding, kLast).first->second;
      if (auto small = small_of.find(binding); small != small_of.end())
        needed = LevelIn(&open[small->second->key], *small->second, needed) - 1;
      const int segment = positions_.Find(binding)->segment;
      VisitOperands(binding, [&](EditableBinding* definition) {
        const Position* found = positions_.Find(definition);
        if (found == nullptr || found->segment != segment) return;
        int& of_operand = latest.try_emplace(definition, kLast).first->second;
        of_operand = std::min(of_operand, needed);
      });
    }
    for (const auto& group : groups_) std::reverse(group->members.begin(), group->members.end());
  }

  /*! \brief The level of a collective, which joins a group or begins one if it is small. */
  int LevelIn(std::map<int, Group*>* groups, const Small& small, int latest) {
    const int own = positions_.Find(small.binding)->level;
    if (!small.is_small) return own;
    int level = -1;
    for (auto it = groups->lower_bound(own); it != groups->end() && it->first <= latest;) {
      const double bytes = it->second->bytes;
      const bool is_full =
          bytes + small.bytes > static_cast<double>(program_.options.combine_bytes);
      if (!is_full && (level < 0 || bytes < groups->at(level)->bytes)) level = it->first;
      it = is_full ? groups->erase(it) : std::next(it);
    }
    if (level >= 0) {
      Group* group = groups->at(level);
      group->members.push_back(small.binding);
      group->bytes += small.bytes;
      return level;
    }
    groups_.push_back(std::make_unique<Group>());
    *groups_.back() = {{small.binding}, small.bytes};
    (*groups)[own] = groups_.back().get();
    return own;
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

  Key KeyOf(const EditableBinding* binding, const Resharding& step, int segment) {
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
    return {segment,
            step.kind,
            type.device_mesh().get(),
            std::move(key),
            step.source.reduction,
            dtype.code,
            dtype.bits * dtype.lanes};
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
