// defer_reductions: reductions move behind operators that commute with them where that merges
// reductions or sends fewer bytes.
//
//     b = R.dist.all_reduce(a, ..)                    c = ..
//     d = R.dist.all_reduce(c, ..)                    s = R.add(a, c)
//     s = R.add(b, d)                            ->   e = R.dist.all_reduce(s, ..)
//
// A sum that has terms which are not partial is regrouped: (x + reduce(a)) + reduce(b) becomes
// x + reduce(a + b). The operators that commute are stated in rules/linearity.h.
//
// Method: a value that exactly one binding uses can stay partial up to that binding, so the
// reductions form trees whose edges are these uses. For every node there is the traffic of having
// its value partial (its operands' traffic, partial) and reduced (the less of: its operands
// reduced; itself partial and reduced here). Choices are then written from the roots. Each binding
// is looked at once.
#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "optimize/optimization.h"
#include "optimize/program/resharding.h"
#include "redistribute/partial.h"
#include "rules/linearity.h"

namespace distir::optimize {

namespace {

using redistribute::PartialAxes;

/*! \brief A value that could still be partial; see the file comment. */
struct Node {
  EditableBinding* binding = nullptr;
  std::vector<Node*> operands;  // whose reductions move behind this binding
  PartialAxes axes;             // over which the value is partial then
  ir::Var form;                 // stands for the partial value, with its type
  std::vector<ir::Expr> terms;  // reduced terms, to be added behind the reduction
  bool is_reduction = false;
  bool has_own = false;   // the operator leaves its result partial whatever its operands are
  bool is_taken = false;  // a later node has it as an operand
  bool reduces_here = false;
  Traffic partial, whole;
};

ir::Expr Substitute(const ir::Expr& expr,
                    const std::unordered_map<const ffi::Object*, ir::Expr>& by) {
  if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
    ffi::Array<ir::Expr> fields;
    for (const ir::Expr& field : tuple.fields()) fields.push_back(Substitute(field, by));
    return ir::MakeTuple(fields);
  }
  auto found = by.find(expr.get());
  return found == by.end() ? expr : found->second;
}

ir::Call WithOperands(const ir::Call& call, const ir::Type& type,
                      const std::unordered_map<const ffi::Object*, ir::Expr>& by) {
  ffi::Array<ir::Expr> args;
  for (const ir::Expr& arg : call.args()) args.push_back(Substitute(arg, by));
  return ir::MakeCall(type, call.op(), args, call.attrs(), call.ty_args(), call.span());
}

void VisitOperands(const ir::Call& call, const std::function<void(const ir::Expr&)>& visit) {
  for (const ir::Expr& arg : call.args()) {
    if (auto tuple = ir::Tuple::Cast(arg); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) visit(field);
    } else {
      visit(arg);
    }
  }
}

class Deferral {
 public:
  Deferral(EditableFunction* editable, Program* program, Tally* tally)
      : editable_(*editable),
        meshes_(*program->meshes),
        decisions_(program->meshes, program->kernels),
        costs_(*program->costs),
        tally_(*tally) {}

  void Run() {
    for (EditableBinding* binding : editable_.Bindings()) {
      if (binding->block == nullptr || binding->cast.defined()) continue;
      auto call = ir::Call::Cast(binding->value);
      if (!call.defined() || !ir::DTensorType::Is(call.ty())) continue;
      if (auto step = ReadResharding(call, &meshes_); step && !step->source.partial.empty()) {
        VisitReduction(binding, call, *step);
      } else if (rules::MayCommute(call.op()) || step) {
        VisitOperator(binding, call);
      }
    }
    for (Node& node : nodes_) {
      if (!node.is_taken) MakeWhole(&node);
    }
    for (const Node& node : nodes_) editable_.DropUnused(node.binding);
  }

 private:
  /*! \brief The node of a value that only this binding uses. */
  Node* Pending(const ir::Expr& value, const EditableBinding* binding) {
    auto found = node_of_.find(value.get());
    if (found == node_of_.end()) return nullptr;
    Node* node = found->second;
    bool here = editable_.OnlyUserOf(value) == binding && node->binding->block == binding->block;
    return here ? node : nullptr;
  }

  Node* Add(EditableBinding* binding, PartialAxes axes, const ir::DTensorType& form_ty) {
    nodes_.emplace_back();
    Node* node = &nodes_.back();
    node->binding = binding;
    node->axes = std::move(axes);
    node->form = ir::MakeVar(binding->var.name(), form_ty, binding->block->is_dataflow);
    node_of_[binding->var.get()] = node;
    return node;
  }

  /*! \brief Sharding of a node's value, partial axes included. */
  mesh::Sharding ShardingOf(const Node& node) {
    mesh::Sharding sharding = meshes_.ShardingOf(ir::DTensorType::Cast(node.form.ty()));
    sharding.partial = node.axes.axes;
    sharding.reduction = node.axes.reduction;
    return mesh::Canonical(sharding);
  }

  /*! \brief The way from a node's partial value to its binding's type. */
  const planning::Plan& PlanOf(const Node& node, const mesh::Sharding& source) {
    auto type = ir::DTensorType::Cast(node.binding->var.ty());
    return costs_.Plan(meshes_.Root(meshes_.RootOf(type)), source, meshes_.ShardingOf(type),
                       type.tensor_ty());
  }

  Traffic ReductionOf(const Node& node) { return Costs::Of(PlanOf(node, ShardingOf(node))); }

  void VisitReduction(EditableBinding* binding, const ir::Call& call, const Resharding& step) {
    PartialAxes axes{step.root, step.source.partial, step.source.reduction};
    bool scatters = step.kind == mesh::CollectiveKind::kReduceScatter;
    Node* inner = Pending(call.args()[0], binding);
    if (inner != nullptr && (inner->axes.reduction != axes.reduction || scatters ||
                             mesh::Overlaps(inner->axes.axes, axes.axes) || !inner->terms.empty()))
      inner = nullptr;
    // Behind a reduce-scatter that is deferred nothing is scattered yet.
    Node* node = Add(binding, axes,
                     ir::DTensorType::Cast(inner != nullptr ? inner->form.ty()
                                           : scatters       ? call.args()[0].ty()
                                                            : call.ty()));
    node->is_reduction = true;
    node->whole =
        costs_.Of(step, meshes_.Root(step.root), ir::DTensorType::Cast(call.ty()).tensor_ty());
    if (inner == nullptr) return;
    inner->is_taken = true;
    node->operands = {inner};
    node->axes.axes.insert(node->axes.axes.end(), inner->axes.axes.begin(), inner->axes.axes.end());
    node->partial = inner->partial;
    Choose(node, node->whole + inner->whole);
  }

  /*! \brief Sets what having the node's value reduced costs. */
  void Choose(Node* node, const Traffic& operands_whole) {
    node->whole = operands_whole;
    if (node->has_own) return;
    Traffic here = node->partial + ReductionOf(*node);
    node->reduces_here = here.IsBetterThan(operands_whole);
    if (node->reduces_here) node->whole = here;
  }

  void VisitOperator(EditableBinding* binding, const ir::Call& call) {
    std::vector<Node*> operands;
    std::unordered_map<const ffi::Object*, ir::Expr> forms;
    std::unordered_map<const ffi::Object*, const PartialAxes*> partial;
    VisitOperands(call, [&](const ir::Expr& operand) {
      Node* node = Pending(operand, binding);
      if (node == nullptr) return;
      operands.push_back(node);
      forms.emplace(operand.get(), node->form);
      partial.emplace(node->form.get(), &node->axes);
    });
    if (operands.empty()) return;
    auto form_ty = FormType(call, operands);
    if (!form_ty.defined()) return;
    std::vector<ir::Expr> terms;
    if (ir::IsOp(call.op(), "relax.add")) {
      if (!CollectTerms(call, operands, &terms)) return;
    } else {
      for (const Node* operand : operands) {
        if (!operand->terms.empty()) return;
      }
    }
    // Beside reduced terms, the sum of the partial ones is what has to commute.
    bool is_sum = !terms.empty();
    ir::Call candidate = WithOperands(call, form_ty, forms);
    if (is_sum && operands.size() == 1) {
      if (operands[0]->axes.reduction != mesh::Reduction::kSum) return;
    } else {
      auto partial_of = [&](const ir::Expr& expr) {
        auto found = partial.find(expr.get());
        return found == partial.end() ? nullptr : found->second;
      };
      auto own = ir::Op::Is(call.op()) && !dialect::DTensorCollective(call.op())
                     ? redistribute::PartialResult(candidate, &decisions_)
                     : std::nullopt;
      auto flow = redistribute::FlowThrough(candidate, partial_of, own, &meshes_);
      if (!flow.is_allowed) return;
      Link(binding, operands, form_ty, terms, own.has_value());
      return;
    }
    Link(binding, operands, form_ty, terms, false);
  }

  void Link(EditableBinding* binding, const std::vector<Node*>& operands,
            const ir::DTensorType& form_ty, std::vector<ir::Expr> terms, bool has_own) {
    Node* node = Add(binding, operands[0]->axes, form_ty);
    node->operands = operands;
    node->terms = std::move(terms);
    node->has_own = has_own;
    Traffic operands_whole;
    for (Node* operand : operands) {
      operand->is_taken = true;
      node->partial = node->partial + operand->partial;
      operands_whole = operands_whole + operand->whole;
    }
    Choose(node, operands_whole);
  }

  /*!
   * \brief The type of a call on the partial forms of these operands: that of the call, except
   * where the operands become shards only in their reduction; then operands and result have to be
   * of one shape. Null where it is not known.
   */
  ir::DTensorType FormType(const ir::Call& call, const std::vector<Node*>& operands) {
    auto type = ir::DTensorType::Cast(call.ty());
    auto first = ir::DTensorType::Cast(operands[0]->form.ty());
    bool any_scatters = false;
    for (const Node* operand : operands) {
      auto form = ir::DTensorType::Cast(operand->form.ty());
      auto whole = ir::DTensorType::Cast(operand->binding->var.ty());
      any_scatters = any_scatters || !dialect::SamePlacement(form, whole);
      if (!dialect::SamePlacement(form, first)) return any_scatters ? ir::DTensorType() : type;
    }
    if (!any_scatters) return type;
    if (dialect::DTensorCollective(call.op())) return ir::DTensorType();
    size_t num_operands = 0;
    bool one_shape = true;
    VisitOperands(call, [&](const ir::Expr& operand) {
      auto dtensor = ir::DTensorType::Cast(operand.ty());
      ++num_operands;
      one_shape = one_shape && dtensor.defined() &&
                  ir::StructurallyEqual(dtensor.tensor_ty().shape(), type.tensor_ty().shape()) &&
                  dialect::SamePlacement(dtensor, type);
    });
    bool is_sum = ir::IsOp(call.op(), "relax.add");
    if (!one_shape || (operands.size() != num_operands && !is_sum)) return ir::DTensorType();
    if (num_operands > 1 && !is_sum && !ir::IsOp(call.op(), "relax.subtract"))
      return ir::DTensorType();
    return ir::MakeDTensorType(type.tensor_ty(), first.device_mesh(), first.placement());
  }

  /*! \brief The reduced terms of a sum with partial ones; false where regrouping changes shapes. */
  bool CollectTerms(const ir::Call& call, const std::vector<Node*>& operands,
                    std::vector<ir::Expr>* terms) {
    bool mixed = operands.size() == 1 && operands[0]->axes.reduction == mesh::Reduction::kSum;
    for (const Node* operand : operands) mixed = mixed || !operand->terms.empty();
    if (!mixed) return true;
    auto same = [&](const ir::Type& type) {
      auto dtensor = ir::DTensorType::Cast(type);
      return dtensor.defined() && ir::StructurallyEqual(dtensor, call.ty());
    };
    for (const ir::Expr& arg : call.args()) {
      if (!same(arg.ty())) return false;
      bool is_partial = false;
      for (const Node* operand : operands)
        is_partial = is_partial || operand->binding->var.same_as(arg);
      if (!is_partial) terms->push_back(arg);
    }
    for (const Node* operand : operands)
      terms->insert(terms->end(), operand->terms.begin(), operand->terms.end());
    return true;
  }

  // ---- writing

  /*! \brief Writes the node's value as partial; its reduced terms are left to the caller. */
  ir::Expr MakePartial(Node* node) {
    auto call = ir::Call::Cast(node->binding->value);
    auto form_ty = ir::DTensorType::Cast(node->form.ty());
    if (node->is_reduction) {
      ir::Expr value = node->operands.empty() ? call.args()[0] : MakePartial(node->operands[0]);
      if (dialect::SamePlacement(ir::DTensorType::Cast(value.ty()), form_ty)) return value;
      return Emit(node, dialect::MakeCollective(mesh::CollectiveKind::kView, value, form_ty));
    }
    std::unordered_map<const ffi::Object*, ir::Expr> values;
    for (Node* operand : node->operands) {
      ir::Expr value = MakePartial(operand);
      values.emplace(operand->binding->var.get(), value);
      if (node->operands.size() == 1 && !node->terms.empty()) return value;
    }
    return Emit(node, WithOperands(call, form_ty, values));
  }

  ir::Expr Emit(const Node* node, const ir::Expr& value) {
    return editable_.InsertBefore(node->binding, node->binding->var.name(), value);
  }

  void MakeWhole(Node* node) {
    if (!node->reduces_here) {
      if (node->is_reduction) tally_.Skip(WhyNot(*node));
      for (Node* operand : node->operands) MakeWhole(operand);
      return;
    }
    ++tally_.matched;
    ir::Expr value = MakePartial(node);
    const mesh::Sharding source = ShardingOf(*node);
    const planning::Plan& plan = PlanOf(*node, source);
    auto target = ir::DTensorType::Cast(node->binding->var.ty());
    value = WritePlan(&editable_, node->binding, value, node->axes.root, source, plan, target,
                      &meshes_);
    // The first term first, as it was.
    for (const ir::Expr& term : node->terms) {
      if (ir::Call::Is(value)) value = Emit(node, value);
      value = ir::MakeOpCall(target, "relax.add", {term, value});
    }
    editable_.SetValue(node->binding, value);
  }

  const char* WhyNot(const Node& node) {
    if (editable_.NumUses(node.binding->var) != 1) return "used more than once";
    return node.is_taken ? "nothing saved" : "its use does not commute";
  }

  EditableFunction& editable_;
  dialect::MeshTable& meshes_;
  rules::Decisions decisions_;
  Costs& costs_;
  Tally& tally_;
  std::deque<Node> nodes_;
  std::unordered_map<const ffi::Object*, Node*> node_of_;
};

}  // namespace

void DeferReductions(Program* program, Tally* tally) {
  for (NamedFunction& function : program->functions)
    Deferral(function.editable.get(), program, tally).Run();
}

}  // namespace distir::optimize
