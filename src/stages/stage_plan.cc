// Assigns bindings to stages, and finds those that every stage repeats.
#include "stages/stage_plan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ir/rewriter.h"
#include "rules/factor/factor_rule.h"
#include "stages/partition.h"
#include "support/error.h"

namespace distir::stages {

namespace {

bool HasTensor(const ir::Type& type) {
  std::vector<ir::TensorType> tensors;
  rules::CollectTensorTypes(type, &tensors);
  return !tensors.empty();
}

/*! \brief Collects the items of a function and what crosses each cut between them. */
class Planner {
 public:
  Planner(const ir::Function& function, const CarriedBindings& carried,
          const propagation::VarShardings& shardings, StageMeshes* meshes,
          const cost::Cluster& cluster, WorkEstimate* work)
      : carried_(carried),
        shardings_(shardings),
        meshes_(*meshes),
        cluster_(cluster),
        work_(*work) {
    for (const ir::BindingBlock& block : function.body().blocks()) {
      for (const ir::Binding& binding : block.bindings()) Visit(binding);
    }
  }

  PartitionProblem Problem(double slack) {
    PartitionProblem problem;
    problem.slack = slack;
    for (const ir::Binding& item : items_) {
      auto binding = ir::VarBinding::Cast(item);
      problem.work.push_back(work_.SecondsOf(item));
      problem.is_operator.push_back(binding.defined() &&
                                    (ir::Call::Is(binding.value()) || ir::If::Is(binding.value())));
    }
    for (size_t stage = 0; stage < meshes_.size(); ++stage) {
      problem.devices.push_back(meshes_.NumDevices(static_cast<int>(stage)));
      problem.transfer.push_back(stage == 0 ? std::vector<double>() : TransfersInto(stage));
    }
    return problem;
  }

  /*! \brief The first item of each stage, from the variables with which later ones begin. */
  std::vector<size_t> FirstItems(const std::string& function,
                                 const std::vector<std::string>& begins) const {
    std::vector<size_t> first_items = {0};
    for (const std::string& name : begins) {
      auto found = next_item_.find(name);
      DISTIR_REQUIRE(found != next_item_.end() && found->second.second == 1, ValueError)
          << "stages begin with variables; `" << function << "` binds "
          << (found == next_item_.end() ? "no" : "several") << " `" << name << "`";
      const size_t item = found->second.first;
      DISTIR_REQUIRE(item > first_items.back() && item < items_.size(), ValueError)
          << "the stage of `" << function << "` that begins with `" << name
          << "`, or the one before it, has no operator; stages are named in program order";
      first_items.push_back(item);
    }
    return first_items;
  }

  StagePlan Assigned(const std::vector<size_t>& first_items) const {
    StagePlan plan;
    for (const auto& [var, span] : spans_) {
      if (!span.is_made) continue;
      auto next = std::upper_bound(first_items.begin(), first_items.end(), span.first);
      plan.stage_of[var.get()] = static_cast<int>(next - first_items.begin()) - 1;
    }
    return plan;
  }

 private:
  // From the item that makes a value (or first uses it, for inputs) to the last that uses it.
  struct Span {
    size_t first;
    size_t last;
    bool is_made;  // by an item, not carried
  };

  void Visit(const ir::Binding& binding) {
    std::pair<size_t, int>& next = next_item_[binding.var().name()];
    next = {items_.size(), next.second + 1};
    auto cast = ir::MatchCast::Cast(binding);
    const ir::Expr value = cast.defined() ? cast.value() : ir::VarBinding::Cast(binding).value();
    if (!cast.defined() && carried_.Find(binding.var()) != nullptr) return;
    if (!cast.defined()) {
      const ir::Expr source =
          ir::TupleGetItem::Is(value) ? ir::TupleGetItem::Cast(value).tuple() : value;
      if (ir::Var::Is(source) && index_.count(source.get()) > 0) {
        const size_t first = spans_[index_.at(source.get())].second.first;
        if (spans_[index_.at(source.get())].second.is_made) {
          Enter(binding.var(), {first, first, true});
          return;
        }
      }
    }
    const size_t item = items_.size();
    items_.push_back(binding);
    ir::VisitUses(value, [&](const ir::Var& var) {
      auto found = index_.find(var.get());
      if (found != index_.end()) {
        Span& span = spans_[found->second].second;
        span.last = std::max(span.last, item);
      } else if (IsTransferredInput(var)) {
        Enter(var, {item, item, false});
      }
    });
    Enter(binding.var(), {item, item, true});
  }

  /*! \brief True if a variable is an input, or of one, rather than a weight that stages have copies
   * of. */
  bool IsTransferredInput(const ir::Var& var) const {
    if (carried_.IsParam(var)) return !carried_.IsTensorWeight(var);
    const Carried* carried = carried_.Find(var);
    return carried != nullptr && carried->param.defined() &&
           !carried_.IsTensorWeight(carried->param);
  }

  void Enter(const ir::Var& var, const Span& span) {
    index_[var.get()] = spans_.size();
    spans_.emplace_back(var, span);
  }

  /*! \brief Per item, seconds of what is live before it on its way to a stage that begins there. */
  std::vector<double> TransfersInto(size_t stage) {
    std::vector<double> change(items_.size() + 1, 0);
    for (const auto& [var, span] : spans_) {
      if (span.first == span.last) continue;
      std::vector<ir::TensorType> tensors;
      rules::CollectTensorTypes(var.ty(), &tensors);
      auto known = shardings_.find(var.get());
      for (size_t i = 0; i < tensors.size(); ++i) {
        const bool is_known = known != shardings_.end() && i < known->second.size();
        const double seconds = meshes_.TransferSeconds(
            cluster_, static_cast<int>(stage), tensors[i], is_known ? known->second[i] : Dims());
        change[span.first + 1] += seconds;
        change[span.last + 1] -= seconds;
      }
    }
    std::vector<double> seconds;
    double live = 0;
    for (size_t i = 0; i < items_.size(); ++i) seconds.push_back(live += change[i]);
    return seconds;
  }

  const CarriedBindings& carried_;
  const propagation::VarShardings& shardings_;
  StageMeshes& meshes_;
  const cost::Cluster& cluster_;
  WorkEstimate& work_;
  std::vector<ir::Binding> items_;
  std::vector<std::pair<ir::Var, Span>> spans_;
  std::unordered_map<const ffi::Object*, size_t> index_;  // in spans_, by variable
  // By name of a variable, its item or the one behind it, and how many have the name.
  std::unordered_map<std::string, std::pair<size_t, int>> next_item_;
};

}  // namespace

CarriedBindings::CarriedBindings(const ir::Function& function) {
  const auto num_input = ir::GetAttr(function.attrs(), "num_input").as<int64_t>();
  for (size_t i = 0; i < function.params().size(); ++i) {
    const ir::Var& param = function.params()[i];
    const bool is_weight = num_input.has_value() && static_cast<int64_t>(i) >= *num_input;
    is_weight_[param.get()] = is_weight && ir::TensorType::Is(param.ty());
  }
}

const Carried* CarriedBindings::Find(const ir::Expr& var) const {
  auto found = carried_.find(var.get());
  return found == carried_.end() ? nullptr : &found->second;
}

bool CarriedBindings::Add(const ir::Var& var, const ir::Expr& value) {
  ir::Expr source = value;
  auto call = ir::Call::Cast(value);
  if (dialect::IsAnnotation(call)) {
    source = call.args()[0];
  } else if (ir::TupleGetItem::Is(value)) {
    source = ir::TupleGetItem::Cast(value).tuple();
  }
  if (ir::Var::Is(source)) {
    if (IsParam(source)) {
      carried_[var.get()] = {value, ir::Var::Cast(source)};
      return true;
    }
    if (const Carried* known = Find(source)) {
      carried_[var.get()] = {value, known->param};
      return true;
    }
    return false;
  }
  if (!IsFromNothing(value) || !HasTensor(var.ty())) return false;
  carried_[var.get()] = {value, ir::Var()};
  return true;
}

bool CarriedBindings::IsFromNothing(const ir::Expr& expr) const {
  if (ir::Var::Is(expr)) {
    const Carried* carried = Find(expr);
    return carried != nullptr && !carried->param.defined();
  }
  if (auto call = ir::Call::Cast(expr); call.defined()) {
    if (!ir::Op::Is(call.op())) return false;
    for (const ir::Expr& arg : call.args()) {
      if (!IsFromNothing(arg)) return false;
    }
    return true;
  }
  if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
    for (const ir::Expr& field : tuple.fields()) {
      if (!IsFromNothing(field)) return false;
    }
    return true;
  }
  // An external function may give something else each time it is called.
  return !ir::If::Is(expr) && !ir::TupleGetItem::Is(expr) && !ir::ExternFunc::Is(expr);
}

StagePlan PlanStages(const std::string& name, const ir::Function& function,
                     const CarriedBindings& carried, const propagation::VarShardings& shardings,
                     StageMeshes* meshes, const cost::Cluster& cluster, WorkEstimate* work,
                     double slack, const std::vector<std::string>& begins) {
  Planner planner(function, carried, shardings, meshes, cluster, work);
  if (!begins.empty()) {
    DISTIR_REQUIRE(begins.size() + 1 == meshes->size(), ValueError)
        << meshes->size() << " stages have " << meshes->size() - 1
        << " beginnings after the first, not " << begins.size();
    return planner.Assigned(planner.FirstItems(name, begins));
  }
  const PartitionProblem problem = planner.Problem(slack);
  const size_t operators = std::count(problem.is_operator.begin(), problem.is_operator.end(), true);
  DISTIR_REQUIRE(operators >= meshes->size(), ValueError)
      << "`" << name << "` has " << operators << " operators, which cannot be cut into "
      << meshes->size() << " stages";
  return planner.Assigned(Partition(problem));
}

}  // namespace distir::stages
