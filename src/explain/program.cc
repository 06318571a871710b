// Reads shardings, links between them and redistributions from a module of any phase, for
// explanations.
#include "explain/program.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "dialect/operators/collective.h"
#include "dialect/operators/collective_record.h"
#include "dialect/operators/manual.h"
#include "dialect/placement.h"
#include "ir/leaves.h"
#include "ir/module/call_graph.h"
#include "ir/module/names.h"
#include "ir/module/numbered.h"
#include "ir/notes.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "lower/local/local_shardings.h"
#include "propagation/emission/emit.h"
#include "redistribute/steps.h"
#include "rules/call/infer_type.h"
#include "rules/call/projection.h"

namespace distir::explain {

namespace {

/*! \brief The name of the operator or of the packed function that is called; empty for others. */
std::string CalledName(const ir::Call& call) {
  if (auto callee = ir::ExternFunc::Cast(call.op()); callee.defined()) return callee.name();
  auto op = ir::Op::Cast(call.op());
  if (!op.defined()) return "";
  if (op.name() != "relax.call_dps_packed" && op.name() != "relax.call_packed") return op.name();
  auto callee = ir::ExternFunc::Cast(call.args()[0]);
  return callee.defined() ? callee.name() : "";
}

/*! \brief The collective that a call is, in any phase; null for other calls. */
const abi::CollectiveRecord* CollectiveOf(const std::string& name) {
  // TVM's own, which lowering takes for a slice.
  if (name == "relax.dist.redistribute_replica_to_shard")
    return &abi::RecordOf(abi::Collective::kSlice);
  for (const auto find : {abi::FindBuiltin, abi::FindOnTensors, abi::FindOnDTensors}) {
    const abi::CollectiveRecord* record = find(name);
    if (record != nullptr && record->family != abi::CollectiveFamily::kKernel) return record;
  }
  return nullptr;
}

/*! \brief The first variable among the arguments of a call, those in a tuple included. */
ir::Expr FirstVariable(const ir::NodeArray<ir::Expr>& args) {
  for (const ir::Expr& arg : args) {
    if (ir::Var::Is(arg)) return arg;
    if (auto tuple = ir::Tuple::Cast(arg); tuple.defined()) {
      ir::Expr found = FirstVariable(tuple.fields());
      if (found.defined()) return found;
    }
  }
  return ir::Expr();
}

/*! \brief The first group of devices of a worker's collective; empty if it names none. */
std::vector<int64_t> GroupOf(const ir::Call& call) {
  auto groups = ir::GetAttr(call.attrs(), "groups").try_cast<ffi::Array<ffi::Array<int64_t>>>();
  if (!groups.has_value() || groups->empty()) return {};
  return {(*groups)[0].begin(), (*groups)[0].end()};
}

/*! \brief The axes of a mesh along which a group's devices differ. */
mesh::AxisList AxesOfGroup(const mesh::Mesh& mesh, const std::vector<int64_t>& group) {
  mesh::AxisList axes;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const bool varies = std::any_of(group.begin(), group.end(), [&](int64_t device) {
      const int64_t here = mesh.PositionOf(device), first = mesh.PositionOf(group[0]);
      return here >= 0 && first >= 0 &&
             mesh.Coordinates(here)[axis] != mesh.Coordinates(first)[axis];
    });
    if (varies) axes.push_back(mesh::FullAxis(mesh, axis));
  }
  return axes;
}

/*! \brief The references of `axes` that overlap none of `taken`. */
mesh::AxisList Without(const mesh::AxisList& axes, const mesh::AxisList& taken) {
  mesh::AxisList rest;
  for (const mesh::AxisRef& ref : axes) {
    if (!mesh::Overlaps({ref}, taken)) rest.push_back(ref);
  }
  return rest;
}

bool HasShardings(const ir::Function& function) {
  return ir::GetAttr(function.attrs(), ir::kShardingsAttr) != nullptr;
}

bool IsReduced(const rules::FactorRule& rule, size_t factor) {
  return rule.factors[factor].Is<rules::ReductionFactor>() && rule.IsCombined(factor);
}

void AddAxes(const mesh::AxisList& more, mesh::AxisList* axes) {
  for (const mesh::AxisRef& ref : more) {
    if (!mesh::Overlaps({ref}, *axes)) axes->push_back(ref);
  }
}

}  // namespace

bool Fact::States(size_t dim, const mesh::AxisRef& axis) const {
  if (!is_stated || dim >= stated_shards.size()) return is_stated;
  int64_t before = 1;
  for (const mesh::AxisRef& each : sharding.dims[dim]) {
    if (mesh::Overlaps(each, axis)) return before < stated_shards[dim];
    before *= each.size;
  }
  return false;
}

const SlotList& FunctionView::SlotsOf(const ir::Expr& var) const {
  static const SlotList none;
  auto found = graph.var_slots.find(var.get());
  return found == graph.var_slots.end() ? none : found->second;
}

const Bound* FunctionView::Find(const ir::Expr& var) const {
  auto found = index.find(var.get());
  return found == index.end() ? nullptr : &bound[found->second];
}

ir::Expr FunctionView::OriginOf(ir::Expr var) const {
  while (true) {
    const Bound* at = Find(var);
    if (at == nullptr || !at->move || !at->move->source.defined()) return var;
    var = at->move->source;
  }
}

Program::Program(const ir::IRModule& mod)
    : mod_(mod),
      meshes_(dialect::TableWithRegions(mod)),
      kernels_(mod.functions()),
      cluster_(cost::ToCluster(ir::GetAttr(mod.attrs(), cost::kClusterAttr))),
      planner_(cluster_) {
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    functions_.emplace(gv.name(), function);
    is_lowered_ = is_lowered_ || HasShardings(function);
    is_propagated_ = is_propagated_ || ir::GetAttr(function.attrs(), ir::kStatedAttr) != nullptr;
  }
}

std::vector<std::string> Program::FunctionNames() const {
  std::vector<std::string> names;
  for (const auto& [name, function] : functions_) names.push_back(name);
  return names;
}

bool Program::IsApart(const std::string& function) const {
  auto apart = ir::GetAttr(mod_.attrs(), lower::kApartAttr).try_cast<ffi::Array<ffi::String>>();
  return apart.has_value() && std::find(apart->begin(), apart->end(), function) != apart->end();
}

const FunctionView* Program::Function(const std::string& name) {
  auto [entry, is_new] = views_.try_emplace(name);
  if (is_new) {
    auto function = functions_.find(name);
    if (function == functions_.end()) return nullptr;
    entry->second = std::make_unique<FunctionView>(Read(name, function->second));
  }
  return entry->second.get();
}

/*! \brief Calls pads and slices that PadShards has put around a move by what they are for. */
void NamePadding(FunctionView* view) {
  std::set<std::string> written;
  for (const auto& [made, origin] : view->made) {
    if (origin.op != "relax.dist.redistribute") continue;
    written.insert(made);
    written.insert(origin.variable);
  }
  if (written.empty()) return;
  for (const Bound& each : view->bound) {
    const auto node = view->graph.node_of_call.find(each.value.get());
    if (node == view->graph.node_of_call.end() || written.count(each.var.name()) == 0) continue;
    propagation::Node& call = view->graph.nodes[node->second];
    if (call.name == "relax.nn.pad" || call.name == "relax.strided_slice") call.name = "padding";
  }
}

FunctionView Program::Read(const std::string& name, const ir::Function& function) {
  FunctionView view;
  view.name = name;
  view.function = function;
  view.is_explicit = dialect::HasExplicitReductions(function);
  view.is_local = is_lowered_;
  view.graph = propagation::BuildGraph(
      name, function, &meshes_, &kernels_,
      [this](const ir::GlobalVar& callee) { return functions_.count(callee.name()) > 0; }, false);
  for (const ir::Var& param : function.params()) view.order.push_back(param);
  ir::VisitBindings(function.body(), [&view](const ir::Binding& binding) {
    auto var_binding = ir::VarBinding::Cast(binding);
    view.index[binding.var().get()] = static_cast<int>(view.bound.size());
    view.bound.push_back(
        {binding.var(), var_binding.defined() ? var_binding.value() : ir::Expr(), {}, {}});
    view.order.push_back(binding.var());
  });
  for (const ir::Var& var : view.order) view.variables[var.name()].push_back(var);
  ReadFacts(&view);
  for (Bound& each : view.bound) {
    if (auto call = ir::Call::Cast(each.value); call.defined()) {
      std::optional<Move> move = MoveOf(view, each.var, call);
      (move && move->changes_sharding ? each.move : each.other_collective) = std::move(move);
    }
  }
  for (size_t i = 0; i < view.bound.size(); ++i) {
    if (!view.bound[i].value.defined()) continue;
    ir::VisitUses(view.bound[i].value, [&view, i](const ir::Var& used) {
      std::vector<int>& users = view.users[used.get()];
      if (users.empty() || users.back() != static_cast<int>(i))
        users.push_back(static_cast<int>(i));
    });
  }
  // A move links its source to its result, dimension by dimension.
  for (const Bound& each : view.bound) {
    if (!each.move || !each.move->source.defined()) continue;
    const SlotList from = view.SlotsOf(each.move->source), to = view.SlotsOf(each.var);
    if (from.size() != to.size()) continue;
    for (size_t i = 0; i < from.size(); ++i) {
      const rules::Sizes& sizes = view.graph.slots[from[i]].sizes;
      if (sizes.size() != view.graph.slots[to[i]].sizes.size()) continue;
      propagation::Node node;
      node.rule = view.graph.rules.Add(rules::IdentityRule(sizes));
      node.operands = {from[i]};
      node.results = {to[i]};
      node.name = each.move->kind;
      view.graph.nodes.push_back(std::move(node));
    }
  }
  ReadPartial(&view);
  view.nodes_of_slot.resize(view.graph.slots.size());
  for (size_t n = 0; n < view.graph.nodes.size(); ++n) {
    for (const auto* slots : {&view.graph.nodes[n].operands, &view.graph.nodes[n].results}) {
      for (int slot : *slots) view.nodes_of_slot[slot].push_back(static_cast<int>(n));
    }
  }
  using Made = ffi::Map<ffi::String, ffi::Any>;
  for (const auto& [cause, entries] :
       ir::GetAttr(function.attrs(), ir::kMadeAttr).try_cast<Made>().value_or(Made())) {
    Origin origin;
    std::istringstream words(cause);
    words >> origin.pass >> origin.op;
    for (const std::string& entry : ir::UnfoldNames(entries)) {
      const size_t colon = entry.rfind(": ");
      if (colon == std::string::npos) continue;
      origin.variable = entry.substr(0, colon);
      const std::string made = entry.substr(colon + 2);
      view.made[made] = origin;
      view.made.emplace(ir::PrintedName(made), origin);
    }
  }
  NamePadding(&view);
  return view;
}

void Program::ReadFacts(FunctionView* view) {
  view->facts.resize(view->graph.slots.size());
  for (const propagation::Source& source : view->graph.sources) {
    Fact& fact = view->facts[source.slot];
    fact.root = source.root;
    fact.sharding = source.sharding;
  }
  ReadBorders(view);
  ReadPlacements(view);
  if (view->is_local) ReadLocalFacts(view);
  for (size_t s = 0; s < view->facts.size(); ++s) {
    Fact& fact = view->facts[s];
    if (fact.root >= 0) fact.sharding.dims.resize(view->graph.slots[s].sizes.size());
  }
  ReadStated(view);
}

void Program::ReadBorders(FunctionView* view) {
  const std::vector<propagation::Node>& nodes = view->graph.nodes;
  for (size_t n = 1; n < nodes.size(); ++n) {
    const propagation::Crossing* crossing = nodes[n].crossing;
    if (crossing == nullptr || nodes[n - 1].results[0] != nodes[n].operands[0]) continue;
    // Behind propagation the operand is placed as it crosses the border.
    Fact& fact = view->facts[nodes[n].operands[0]];
    fact = view->facts[nodes[n - 1].operands[0]];
    if (!crossing->enters) continue;
    fact.is_stated = true;
    fact.stated_shards.clear();
    for (const mesh::AxisList& axes : crossing->manual)
      fact.stated_shards.push_back(mesh::NumShards(axes));
  }
}

void Program::ReadPlacements(FunctionView* view) {
  for (const ir::Var& var : view->order) {
    const SlotList& slots = view->SlotsOf(var);
    size_t next = 0;
    ir::ForEachLeaf(var.ty(), [&](const ir::Type& leaf) {
      auto dtensor = ir::DTensorType::Cast(leaf);
      if (!dtensor.defined() && !ir::TensorType::Is(leaf)) return;
      if (next < slots.size() && dtensor.defined())
        view->facts[slots[next]].placement = dialect::PlacementText(dtensor.placement());
      ++next;
    });
  }
}

void Program::ReadLocalFacts(FunctionView* view) {
  const auto known = lower::ReadLocalShardings(view->function, mod_.global_infos(), &meshes_);
  // Every device has all of what takes no part.
  if (IsApart(view->name)) return;
  size_t num_found = 0;
  for (const ir::Var& var : view->order) {
    const SlotList& slots = view->SlotsOf(var);
    const std::vector<std::string> names = lower::NamesOfTensors(var);
    const bool is_only = view->variables.at(var.name()).size() == 1;
    for (size_t i = 0; i < slots.size(); ++i) {
      Fact& fact = view->facts[slots[i]];
      auto found = i < names.size() ? known.by_name.find(names[i]) : known.by_name.end();
      if (i < names.size() && found == known.by_name.end())
        found = known.by_name.find(ir::PrintedName(names[i]));
      num_found += found != known.by_name.end();
      fact.is_known =
          is_only && found != known.by_name.end() &&
          found->second.sharding.dims.size() <= view->graph.slots[slots[i]].sizes.size();
      if (!fact.is_known) continue;
      fact.root = found->second.root;
      fact.sharding = found->second.sharding;
      fact.placement = found->second.placement;
    }
  }
  // Our passes keep names. TVM's may give new ones, from lv and gv up, which may be those of other
  // variables before (FuseOps), but then there are fewer.
  view->is_changed = num_found < known.num_listed;
  // Returned values have slots of their own.
  for (const propagation::Node& node : view->graph.nodes) {
    for (int slot : node.results) {
      const bool is_result = std::find(view->graph.results.begin(), view->graph.results.end(),
                                       slot) != view->graph.results.end();
      if (is_result && node.operands.size() == 1) view->facts[slot] = view->facts[node.operands[0]];
    }
  }
}

void Program::ReadStated(FunctionView* view) {
  const ffi::Any stated = ir::GetAttr(view->function.attrs(), ir::kStatedAttr);
  if (stated != nullptr) {
    for (const std::string& name : ir::UnfoldNames(stated)) {
      auto vars = view->variables.find(name);
      if (vars == view->variables.end()) vars = view->variables.find(ir::PrintedName(name));
      if (vars == view->variables.end() || vars->second.size() > 1) continue;
      for (int slot : view->SlotsOf(vars->second[0])) view->facts[slot].is_stated = true;
    }
    ReadOpen(view);
  } else if (!is_propagated_ && ir::IsPublic(view->function)) {
    // A module that was written with types states those of its parameters.
    for (int slot : view->graph.params) view->facts[slot].is_stated = true;
  }
}

void Program::ReadNotes(FunctionView* view, const char* attr,
                        const std::function<void(Fact*, std::istringstream&)>& read) {
  for (const std::string& entry : ir::UnfoldNames(ir::GetAttr(view->function.attrs(), attr))) {
    const size_t colon = entry.rfind(": ");
    if (colon == std::string::npos) continue;
    const std::string name = entry.substr(0, colon);
    auto vars = view->variables.find(name);
    if (vars == view->variables.end()) vars = view->variables.find(ir::PrintedName(name));
    if (vars == view->variables.end() || vars->second.size() > 1) continue;
    const SlotList& slots = view->SlotsOf(vars->second[0]);
    if (slots.size() != 1) continue;
    std::istringstream rest(entry.substr(colon + 2));
    read(&view->facts[slots[0]], rest);
  }
}

void Program::ReadOpen(FunctionView* view) {
  ReadNotes(view, ir::kOpenAttr, [](Fact* fact, std::istringstream& shards) {
    for (int64_t count; shards >> count;) fact->stated_shards.push_back(count);
  });
  ReadNotes(view, ir::kTakenBackAttr, [](Fact* fact, std::istringstream& rest) {
    int dim = 0;
    int64_t shards = 0;
    if (rest >> dim >> shards) fact->taken_back.emplace_back(dim, shards);
  });
}

std::optional<Move> Program::MoveOf(const FunctionView& view, const ir::Var& var,
                                    const ir::Call& call) {
  Move move;
  if (ir::IsOp(call.op(), "relax.dist.redistribute")) {
    move.kind = "redistribute";
  } else {
    const std::string name = CalledName(call);
    const abi::CollectiveRecord* record = CollectiveOf(name);
    if (record == nullptr) return std::nullopt;
    move.kind = record->name;
    move.is_reduction = record->reduces;
    move.collective = record->collective;
    move.changes_sharding = record->family == abi::CollectiveFamily::kRedistribution ||
                            record->family == abi::CollectiveFamily::kSide;
  }
  if (move.collective != abi::Collective::kRecv) move.source = FirstVariable(call.args());
  if (move.is_reduction) move.reduced = ReducedAxes(view, var, call);
  return move;
}

mesh::AxisList Program::ReducedAxes(const FunctionView& view, const ir::Var& var,
                                    const ir::Call& call) {
  const SlotList& slots = view.SlotsOf(var);
  const int root = slots.empty() ? -1 : view.facts[slots[0]].root;
  if (root < 0) return {};
  if (dialect::RecordOnDTensors(call.op()) == nullptr)
    return AxesOfGroup(meshes_.Root(root), GroupOf(call));
  mesh::AxisList reduced;
  auto views = mesh::Relate(dialect::ToMesh(dialect::TargetMesh(call)), meshes_.Root(root));
  if (!views) return {};
  for (int axis : dialect::ReduceAxes(call)) AddAxes((*views)[axis], &reduced);
  return reduced;
}

void Program::ReadPartial(FunctionView* view) {
  // Nodes stand in program order, moves behind them, so bindings lead.
  std::unordered_map<int, std::vector<int>> nodes_of_result;
  for (size_t n = 0; n < view->graph.nodes.size(); ++n) {
    for (int slot : view->graph.nodes[n].results)
      nodes_of_result[slot].push_back(static_cast<int>(n));
  }
  for (const Bound& each : view->bound) {
    for (int slot : view->SlotsOf(each.var)) {
      Fact& fact = view->facts[slot];
      if (fact.root < 0) continue;
      for (int n : nodes_of_result[slot]) {
        const propagation::Node& node = view->graph.nodes[n];
        for (size_t i = 0; i < node.operands.size(); ++i) {
          const Fact& operand = view->facts[node.operands[i]];
          if (operand.root < 0) continue;
          const mesh::AxisList& passed = operand.sharding.partial;
          mesh::AxisList left = passed;
          if (each.move && each.move->is_reduction) {
            // A runtime call does not say over what: over all, then.
            left =
                each.move->reduced.empty() ? mesh::AxisList() : Without(passed, each.move->reduced);
          }
          if (view->is_explicit && !left.empty()) {
            fact.sharding.reduction = operand.sharding.reduction;
            AddAxes(left, &fact.sharding.partial);
            if (fact.cause.node < 0) fact.cause = {n, static_cast<int>(i), -1};
          }
          if (each.move) continue;
          rules::FactorShardings factors(node.rule->factors.size());
          rules::Project(*node.rule, node.rule->operands[i], operand.sharding, &factors);
          for (size_t f = 0; f < factors.size(); ++f) {
            if (factors[f].empty() || !IsReduced(*node.rule, f)) continue;
            fact.sharding.reduction = node.rule->factors[f].reduction();
            AddAxes(factors[f], &fact.sharding.partial);
            if (fact.cause.dim >= 0) continue;
            const rules::TensorFactors& dims = node.rule->operands[i];
            for (size_t d = 0; d < dims.size(); ++d) {
              if (std::find(dims[d].begin(), dims[d].end(), static_cast<int>(f)) != dims[d].end())
                fact.cause = {n, static_cast<int>(i), static_cast<int>(d)};
            }
          }
        }
      }
    }
  }
}

const std::vector<AcrossCall>& Program::AcrossCalls(const TensorOf& tensor) {
  static const std::vector<AcrossCall> none;
  ReadCalls();
  auto found = across_calls_.find(tensor);
  return found == across_calls_.end() ? none : found->second;
}

bool Program::IsUnchanged() {
  ReadCalls();
  return is_unchanged_;
}

const std::vector<std::string>& Program::LostVariables() {
  ReadCalls();
  return lost_variables_;
}

void Program::ReadCalls() {
  if (std::exchange(has_calls_, true)) return;
  std::set<std::string> stated, variables;
  for (const std::string& name : FunctionNames()) {
    const FunctionView* caller = Function(name);
    for (const propagation::CallSite& site : caller->graph.calls) {
      const FunctionView* callee = Function(site.callee.name());
      auto link = [&](const SlotList& here, const SlotList& there, bool is_given) {
        if (here.size() != there.size()) return;
        for (size_t i = 0; i < here.size(); ++i) {
          const TensorOf outside = {caller, here[i]}, inside = {callee, there[i]};
          across_calls_[outside].push_back({inside, !is_given});
          across_calls_[inside].push_back({outside, is_given});
        }
      };
      link(site.arguments, callee->graph.params, true);
      link(site.results, callee->graph.results, false);
    }
    const bool has_own = !is_lowered_ || HasShardings(caller->function) || IsApart(name);
    is_unchanged_ = is_unchanged_ && has_own && !caller->is_changed;
    for (const std::string& each :
         ir::UnfoldNames(ir::GetAttr(caller->function.attrs(), ir::kStatedAttr)))
      stated.insert(each);
    for (const auto& [each, vars] : caller->variables) variables.insert(each);
  }
  // Of several workers' programs, each has some of what was stated.
  std::copy_if(stated.begin(), stated.end(), std::back_inserter(lost_variables_),
               [&variables](const std::string& name) {
                 return variables.count(name) == 0 && variables.count(ir::PrintedName(name)) == 0;
               });
}

std::string Program::ViewText(const ir::Type& type) {
  auto dtensor = ir::DTensorType::Cast(type);
  if (!dtensor.defined()) return "";
  const ir::DeviceMesh mesh = dtensor.device_mesh();
  if (meshes_.RootMesh(meshes_.RootOf(mesh)).same_as(mesh)) return "";
  return "\"" + dialect::PlacementText(dtensor.placement()) + "\" on " +
         mesh::ToString(dialect::ToMesh(mesh));
}

const planning::Plan* Program::PlanOf(const FunctionView& view, int slot,
                                      const mesh::Sharding& source, const mesh::Sharding& target) {
  const propagation::SlotInfo& info = view.graph.slots[slot];
  if (!ir::HasKnownShape(info.type)) return nullptr;
  const Fact& fact = view.facts[slot];
  planning::TensorSize size = redistribute::SizeOf(info.type);
  for (size_t d = 0; d < size.dims.size() && d < fact.sharding.dims.size(); ++d) {
    if (view.is_local) {
      const int64_t shards = mesh::NumShards(fact.sharding.dims[d]);
      size.dims[d] *= shards;
      size.bytes *= static_cast<double>(shards);
    }
  }
  return &planner_.Find(meshes_.Root(fact.root), source, target,
                        planning::PaddedFor(std::move(size), source, target));
}

}  // namespace distir::explain
