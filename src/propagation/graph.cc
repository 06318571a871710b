// Builds the propagation graph of a function: its tensors (slots), and the rules that link them.
#include "propagation/graph.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <unordered_set>

#include "dialect/operators/collective.h"
#include "dialect/operators/copies_reduction.h"
#include "dialect/operators/kv_cache.h"
#include "dialect/operators/manual.h"
#include "dialect/operators/segment_exchange.h"
#include "dialect/operators/token_dispatch.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/symbolic.h"
#include "rules/call/infer_type.h"
#include "rules/call/known_rules.h"
#include "rules/call/projection.h"
#include "rules/operator.h"
#include "rules/parts.h"
#include "rules/registry.h"
#include "rules/tir/rule.h"
#include "support/counted.h"
#include "support/error.h"
#include "support/in_order.h"

namespace distir::propagation {

namespace {

class GraphBuilder {
 public:
  GraphBuilder(FunctionGraph* graph, dialect::MeshTable* meshes, rules::KernelTable* kernels,
               const std::function<bool(const ir::GlobalVar&)>& is_relax_function, bool warns)
      : graph_(*graph),
        meshes_(*meshes),
        kernels_(*kernels),
        known_rules_(&graph->rules),
        is_relax_function_(is_relax_function),
        warns_(warns) {}

  void Run() {
    for (const ir::Var& param : graph_.function.params()) {
      DISTIR_REQUIRE(!ir::FuncType::Is(param.ty()), ValueError)
          << "parameter `" << param.name() << "` of `" << graph_.name
          << "` is a function, which workers cannot be given; give them values, and leave passes "
          << "such as relax.transform.LazyGetInput out";
      params_.insert(param.get());
      SlotList slots = NewSlots(param.ty(), param.name());
      graph_.params.insert(graph_.params.end(), slots.begin(), slots.end());
      graph_.var_slots[param.get()] = std::move(slots);
    }
    SlotList body = VisitSeq(graph_.function.body());
    graph_.results = NewSlots(rules::StripDistribution(graph_.function.body().body().ty()),
                              "result of " + graph_.name);
    AddIdentities(body, graph_.results, "return");
    StateTypes(graph_.function.ret_ty(), graph_.results);
  }

 private:
  SlotList VisitSeq(const ir::SeqExpr& seq) {
    for (const ir::BindingBlock& block : seq.blocks()) {
      for (const ir::Binding& binding : block.bindings()) VisitBinding(binding);
    }
    return SlotsOf(seq.body());
  }

  void VisitBinding(const ir::Binding& binding) {
    const ir::Var& var = binding.var();
    if (auto cast = ir::MatchCast::Cast(binding); cast.defined()) {
      SlotList slots = NewSlots(var.ty(), var.name());
      SlotList value = SlotsOf(cast.value());
      if (value.size() == slots.size()) AddCast(value, slots);
      graph_.var_slots[var.get()] = std::move(slots);
      return;
    }
    ir::Expr value = ir::VarBinding::Cast(binding).value();
    if (auto call = ir::Call::Cast(value); call.defined()) {
      VisitCall(var, call);
    } else if (auto branch = ir::If::Cast(value); branch.defined()) {
      VisitIf(var, branch);
    } else if (ir::Function::Is(value)) {
      TVM_FFI_THROW(ValueError)
          << "local function `" << var.name() << "` in `" << graph_.name
          << "`: PropagateSharding works on global functions; run relax.transform.LambdaLift first";
    } else {
      graph_.var_slots[var.get()] = SlotsOf(value);
    }
  }

  /*! \brief A value that loses its shape is replicated before: later it cannot be redistributed. */
  void AddCast(const SlotList& from, const SlotList& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      const bool loses_shape = ir::HasKnownShape(graph_.slots[from[i]].type) &&
                               !ir::HasKnownShape(graph_.slots[to[i]].type);
      if (!loses_shape) AddIdentities({from[i]}, {to[i]}, "match_cast");
    }
  }

  void VisitCall(const ir::Var& var, const ir::Call& call) {
    SlotList results = NewSlots(var.ty(), var.name());
    if (dialect::IsAnnotation(call)) {
      AddIdentities(SlotsOf(call.args()[0]), results, "annotate_sharding");
      for (int slot : results) StateAnnotation(call, slot);
    } else if (dialect::IsBarrier(call.op())) {
      AddIdentities(SlotsOf(call.args()[0]), results, "propagation_barrier",
                    dialect::BlockedBy(call));
    } else if (dialect::IsShardingGroup(call.op())) {
      results = VisitGroup(var, SlotsOf(call.args()[0]));
    } else if (dialect::CrossesRegion(call)) {
      VisitCrossing(var, call, results);
    } else if (ir::IsOp(call.op(), "relax.dist.redistribute")) {
      SlotsOf(call.args()[0]);
      StateAll(dialect::TargetMesh(call), dialect::TargetPlacement(call), results);
    } else if (dialect::DTensorCollective(call.op()).has_value() ||
               dialect::IsSegmentExchange(call.op()) || dialect::IsOfTokens(call.op())) {
      for (const ir::Expr& arg : call.args()) SlotsOf(arg);  // its types state both sides
    } else if (auto callee = ir::GlobalVar::Cast(call.op());
               callee.defined() && is_relax_function_(callee)) {
      CallSite site{call.get(), callee, {}, results, graph_.nodes.size()};
      for (const ir::Expr& arg : call.args()) Append(SlotsOf(arg), &site.arguments);
      graph_.calls.push_back(std::move(site));
    } else if (callee.defined()) {
      TVM_FFI_THROW(ValueError)
          << "`" << var.name() << "` in `" << graph_.name << "` calls the kernel `" << callee.name()
          << "` with its result as an argument, as relax.transform.CallTIRRewrite writes it; "
          << "PropagateSharding needs R.call_tir, so leave that pass to dx.build";
    } else if (ir::Var::Is(call.op())) {
      TVM_FFI_THROW(ValueError) << "`" << var.name() << "` in `" << graph_.name
                                << "` calls a function that is known at run time only; "
                                << "PropagateSharding works on calls of global functions";
    } else {
      VisitOperator(var, call, results);
    }
    graph_.var_slots[var.get()] = std::move(results);
  }

  void VisitCrossing(const ir::Var& var, const ir::Call& call, const SlotList& results) {
    const SlotList given = SlotsOf(call.args()[0]);
    TVM_FFI_ICHECK(given.size() == 1 && results.size() == 1) << "regions take single tensors";
    const int end = static_cast<int>(graph_.slots.size());  // the operand, at the region's border
    graph_.slots.push_back(graph_.slots[given[0]]);
    graph_.slots.back().is_constant = false;
    graph_.slots.back().name = var.name();
    const bool enters = dialect::IsEnterManual(call.op());
    AddIdentities(given, {end}, enters ? "enter_manual" : "leave_manual");
    const Crossing& crossing = graph_.crossings.emplace_back(Crossing{
        &dialect::RegionOfCrossing(call, &meshes_), dialect::ManualDims(call, &meshes_), enters});
    Node node;
    node.rule = graph_.rules.Add(rules::IdentityRule(graph_.slots[end].sizes));
    node.operands = {end};
    node.results = results;
    node.name = enters ? "enter_manual" : "leave_manual";
    node.crossing = &crossing;
    graph_.nodes.push_back(std::move(node));
    // An annotation that repeats the variable's DTensor type states nothing new.
    const bool is_placed = ir::DTensorType::Is(var.ty());
    if (enters || !is_placed) StateOutside(crossing, enters ? end : results[0]);
    if (!enters || !is_placed) StateInside(crossing, enters ? results[0] : end);
  }

  /*! \brief Its manual axes are stated, and any automatic ones may stand behind them. */
  void StateOutside(const Crossing& crossing, int slot) {
    Source source;
    source.slot = slot;
    source.root = crossing.region->outer;
    source.sharding = mesh::Sharding::Replicated(static_cast<int>(crossing.manual.size()));
    source.sharding.dims = crossing.manual;
    source.open.assign(crossing.manual.size(), true);
    mesh::AxisList stated;
    for (const mesh::AxisList& axes : crossing.manual)
      stated.insert(stated.end(), axes.begin(), axes.end());
    for (const mesh::AxisRef& ref : crossing.region->manual) {
      if (!mesh::Overlaps({ref}, stated)) source.replicated.push_back(ref);
    }
    CheckHasElements(graph_.slots[slot], source);
    graph_.sources.push_back(std::move(source));
  }

  void StateInside(const Crossing& crossing, int slot) {
    Source source;
    source.slot = slot;
    source.root = crossing.region->inner;
    source.sharding = mesh::Sharding::Replicated(static_cast<int>(crossing.manual.size()));
    source.open.assign(crossing.manual.size(), true);
    graph_.sources.push_back(std::move(source));
  }

  /*! \brief One slot for all values of a group, of sizes that whatever divides them divides all. */
  SlotList VisitGroup(const ir::Var& var, const SlotList& values) {
    if (values.empty()) return {};
    const int slot = static_cast<int>(graph_.slots.size());
    graph_.slots.push_back(graph_.slots[values[0]]);
    SlotInfo& shared = graph_.slots.back();
    shared.name = var.name();
    shared.is_constant = false;
    for (int value : values) {
      const SlotInfo& info = graph_.slots[value];
      DISTIR_REQUIRE(info.sizes.size() == shared.sizes.size(), ValueError)
          << "`" << var.name() << "` in `" << graph_.name
          << "` is a sharding group of tensors with different numbers of dimensions: `"
          << graph_.slots[values[0]].name << "` has " << shared.sizes.size() << ", `" << info.name
          << "` has " << info.sizes.size();
      for (size_t d = 0; d < info.sizes.size(); ++d) {
        // A symbolic size (-1) may be the same as any.
        if (info.sizes[d] < 0) continue;
        DISTIR_REQUIRE(shared.sizes[d] < 0 || shared.sizes[d] == info.sizes[d], ValueError)
            << "`" << var.name() << "` in `" << graph_.name
            << "` is a sharding group of tensors of different sizes: dimension " << d << " of `"
            << info.name << "` has " << info.sizes[d] << ", that of others " << shared.sizes[d];
        shared.sizes[d] = info.sizes[d];
      }
      shared.elements = std::max(shared.elements, info.elements);
    }
    for (int value : values) AddIdentities({value}, {slot}, "sharding_group");
    return SlotList(values.size(), slot);
  }

  /*! \brief Sizes that a virtual machine keeps in memory would be those of a whole tensor. */
  void RequireSizesInTypes(const ir::Var& var, const ir::Call& call) const {
    auto callee = ir::ExternFunc::Cast(call.op());
    const std::string name = callee.defined() ? callee.name() : "";
    DISTIR_REQUIRE(name != "vm.builtin.alloc_shape_heap" && name != "vm.builtin.match_shape" &&
                       name != "vm.builtin.check_tensor_info",
                   ValueError)
        << "`" << var.name() << "` in `" << graph_.name << "` calls " << name
        << ", as relax.transform.VMShapeLower writes it; PropagateSharding needs sizes in types, "
           "so "
        << "leave that pass to dx.build";
  }

  /*! \brief TVM has kernels for known dtypes only: it would fail while it writes them. */
  void RequireDtypes(const ir::Var& var, const ir::Call& call, const SlotList& operands) const {
    for (int slot : operands) {
      const SlotInfo& operand = graph_.slots[slot];
      DISTIR_REQUIRE(operand.type.has_dtype(), ValueError)
          << "`" << var.name() << "` in `" << graph_.name << "` is computed by "
          << ir::CalleeName(call) << " from `" << operand.name
          << "`, of which no dtype is known; state it, as in R.Tensor(shape, \"float32\")";
    }
  }

  void VisitOperator(const ir::Var& var, const ir::Call& call, const SlotList& results) {
    RequireSizesInTypes(var, call);
    const ir::Type& result_ty = var.ty();
    if (ir::IsOp(call.op(), "relax.shape_of") && HasKnownShape(call.args()[0])) return;
    if (auto cache = dialect::CacheCall(call)) return VisitCacheCall(var, call, *cache, results);
    if (dialect::IsCopiesReduction(call.op())) dialect::RequireCopies(call);
    parts_.Note(var, call, rules::StripDistribution(result_ty));
    Node node;
    node.rule = known_rules_.Of(call, result_ty, &kernels_, warns_ ? &graph_.name : nullptr);
    if (const Joined joined = JoinedTensor(call); joined.slot >= 0) {
      node.rule = Unblocked(*node.rule);
      AddWhole(call, joined, results[0]);
    }
    for (const ir::Expr& arg : call.args()) Append(SlotsOf(arg), &node.operands);
    node.results = results;
    if (rules::FindOperator(call.op()) != nullptr) RequireDtypes(var, call, node.operands);
    if (node.operands.empty()) {
      // R.zeros: every device has all of it, so its uses need not agree.
      for (int slot : results) graph_.slots[slot].is_constant = true;
    }
    if (ir::Op::Is(call.op())) node.name = ir::Op::Cast(call.op()).name();
    graph_.node_of_call[call.get()] = static_cast<int>(graph_.nodes.size());
    graph_.nodes.push_back(std::move(node));
  }

  /*! \brief The one tensor whose parts a call joins along a dimension, as a roll does; constants
   * may be among them. */
  struct Joined {
    int slot = -1;  // none
    int dim = -1;
  };

  Joined JoinedTensor(const ir::Call& call) {
    const rules::Operator* record = rules::FindOperator(call.op());
    if (record == nullptr || record->joined_dim == nullptr) return {};
    auto tuple = ir::Tuple::Cast(call.args()[0]);
    if (!tuple.defined()) return {};
    const int dim = record->joined_dim(rules::ViewCall(call, call.ty()));
    if (dim < 0) return {};
    ir::Expr joined;
    for (const ir::Expr& operand : tuple.fields()) {
      const SlotList slots = SlotsOf(operand);
      if (slots.size() != 1 || dim >= static_cast<int>(graph_.slots[slots[0]].sizes.size()))
        return {};
      if (graph_.slots[slots[0]].is_constant) continue;
      const ir::Expr from = parts_.Of(operand, dim, graph_.slots[slots[0]].sizes[dim]).of;
      if (joined.defined() && !from.same_as(joined)) return {};
      joined = from;
    }
    if (!joined.defined()) return {};
    const SlotList slots = SlotsOf(joined);
    if (slots.size() != 1 || dim >= static_cast<int>(graph_.slots[slots[0]].sizes.size()))
      return {};
    return {slots[0], dim};
  }

  /*! \brief Links a join to the tensor whose parts it joins, since the parts may be too short for
   * the shards that both have. */
  void AddWhole(const ir::Call& call, const Joined& joined, int result) {
    const rules::Sizes& before = graph_.slots[joined.slot].sizes;
    const rules::Sizes& after = graph_.slots[result].sizes;
    if (joined.dim >= static_cast<int>(after.size())) return;
    const int64_t from = before[joined.dim], to = after[joined.dim];
    if (from <= 0 || to <= 0) return;
    rules::FactorRule rule = rules::IdentityRule(after);
    rule.is_pass_through = false;
    rule.factors[joined.dim].size = std::max(from, to);
    rule.factors[joined.dim].kind = rules::DecomposedFactor{rules::Exchanged::kMoved};
    rule.operands[0][joined.dim].extent = from;
    rule.results[0][joined.dim].extent = to;
    graph_.nodes.push_back({graph_.rules.Add(std::move(rule)),
                            {joined.slot},
                            {result},
                            ir::Op::Cast(call.op()).name()});
  }

  const rules::FactorRule* Unblocked(rules::FactorRule rule) {
    for (rules::Factor& factor : rule.factors) {
      if (auto* decomposed = std::get_if<rules::DecomposedFactor>(&factor.kind))
        decomposed->is_blocked = false;
    }
    return graph_.rules.Add(std::move(rule));
  }

  // Links what goes into a cache to what was in it before, but for positions. Each state of a cache
  // has a slot of its own.
  void VisitCacheCall(const ir::Var& var, const ir::Call& call, dialect::CacheCallKind kind,
                      const SlotList& results) {
    ir::Expr cache = dialect::UsedCache(call, kind);
    Node node;
    node.name = ir::ExternFunc::Cast(call.op()).name();
    if (auto last = last_in_cache_.find(cache.get()); last != last_in_cache_.end())
      node.operands.push_back(last->second);
    int argument = dialect::CacheTensorArgument(kind);
    if (argument >= 0) {
      const ir::Expr& tensor = call.args()[argument];
      Append(SlotsOf(tensor), &node.operands);
      node.results = NewSlots(rules::StripDistribution(tensor.ty()), var.name());
      DISTIR_REQUIRE(node.results.size() == 1, ValueError)
          << "`" << var.name() << "` in `" << graph_.name << "`: " << node.name
          << " needs a tensor as argument " << argument;
      last_in_cache_[var.get()] = node.results[0];
      if (cache.defined()) last_in_cache_[cache.get()] = node.results[0];
    } else {
      node.results = results;
    }
    rules::FactorRule rule;
    for (int slot : node.operands) rule.operands.push_back(AddCacheFactors(slot, &rule));
    for (int slot : node.results) rule.results.push_back(AddCacheFactors(slot, &rule));
    node.rule = graph_.rules.Add(std::move(rule));
    graph_.node_of_call[call.get()] = static_cast<int>(graph_.nodes.size());
    graph_.nodes.push_back(std::move(node));
  }

  rules::TensorFactors AddCacheFactors(int slot, rules::FactorRule* rule) const {
    const rules::Sizes& sizes = graph_.slots[slot].sizes;
    rules::TensorFactors factors(sizes.size());
    for (size_t d = 1; d < sizes.size(); ++d) {
      if (rule->factors.size() < d) rule->factors.push_back({sizes[d], rules::ParallelFactor()});
      factors[d] = {static_cast<int>(d) - 1};
    }
    return factors;
  }

  void VisitIf(const ir::Var& var, const ir::If& branch) {
    SlotList true_value = VisitSeq(branch.true_branch());
    SlotList false_value = VisitSeq(branch.false_branch());
    SlotList results = NewSlots(var.ty(), var.name());
    AddIdentities(true_value, results, "if");
    AddIdentities(false_value, results, "if");
    AddCondition(SlotsOf(branch.cond()), results);
    graph_.var_slots[var.get()] = results;
  }

  // Says nothing of shardings, only that a condition and what depends on it belong to one mesh.
  void AddCondition(const SlotList& cond, const SlotList& results) {
    if (cond.size() != 1 || results.empty()) return;
    Node node;
    rules::FactorRule rule;
    rule.operands.resize(1);
    rule.results.resize(results.size());
    node.rule = graph_.rules.Add(std::move(rule));
    node.operands = cond;
    node.results = results;
    node.name = "if";
    graph_.nodes.push_back(std::move(node));
  }

  // The slots of an expression in A-normal form.
  SlotList SlotsOf(const ir::Expr& expr) {
    if (ir::Var::Is(expr)) {
      auto it = graph_.var_slots.find(expr.get());
      return it == graph_.var_slots.end() ? SlotList() : it->second;
    }
    if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
      SlotList slots;
      for (const ir::Expr& field : tuple.fields()) Append(SlotsOf(field), &slots);
      return slots;
    }
    if (auto item = ir::TupleGetItem::Cast(expr); item.defined()) {
      SlotList slots = SlotsOf(item.tuple());
      auto type = ir::TupleType::Cast(item.tuple().ty());
      if (!type.defined()) return {};
      size_t begin = 0;
      for (int i = 0; i < item.index(); ++i) begin += CountTensors(type.fields()[i]);
      size_t count = CountTensors(type.fields()[item.index()]);
      return SlotList(slots.begin() + begin, slots.begin() + begin + count);
    }
    if (ir::Constant::Is(expr) && CountTensors(expr.ty()) > 0) {
      auto [it, inserted] = graph_.expr_slots.try_emplace(expr.get());
      if (inserted) {
        it->second = NewSlots(rules::StripDistribution(expr.ty()), "constant");
        for (int slot : it->second) graph_.slots[slot].is_constant = true;
      }
      return it->second;
    }
    DISTIR_REQUIRE(!ir::Call::Is(expr) || CountTensors(expr.ty()) == 0, ValueError)
        << "`" << graph_.name << "` has a call within another expression; run "
        << "relax.transform.Normalize before PropagateSharding";
    return {};
  }

  static bool HasKnownShape(const ir::Expr& tensor) {
    auto type = ir::TensorType::Cast(rules::StripDistribution(tensor.ty()));
    return type.defined() && ir::HasKnownShape(type);
  }

  static size_t CountTensors(const ir::Type& type) {
    std::vector<ir::TensorType> tensors;
    rules::CollectTensorTypes(type, &tensors);
    return tensors.size();
  }

  /*! \brief TVM types a slice that ends before it begins as one of fewer than no elements. */
  void RequireExtents(const ir::TensorType& type, const ffi::String& name) const {
    const ir::NodeArray<ir::Expr>& shape = ir::ShapeOf(type);
    for (size_t d = 0; d < shape.size(); ++d) {
      DISTIR_REQUIRE(!ir::IntImm::Is(shape[d]) || ir::IntImm::Cast(shape[d]).value() >= 0,
                     ValueError)
          << "`" << name << "` in `" << graph_.name << "` has the negative extent "
          << ir::IntImm::Cast(shape[d]).value() << " along dimension " << d
          << ", as R.strided_slice with assume_inbound=True gives where it ends before it begins; "
          << "assume_inbound=False gives no elements";
    }
  }

  SlotList NewSlots(const ir::Type& type, const ffi::String& name) {
    std::vector<ir::TensorType> tensors;
    rules::CollectTensorTypes(type, &tensors);
    SlotList slots;
    for (const ir::TensorType& tensor : tensors) {
      RequireExtents(tensor, name);
      slots.push_back(static_cast<int>(graph_.slots.size()));
      rules::Sizes sizes = rules::StaticSizes(tensor);
      graph_.slots.push_back({tensor, name, sizes, rules::NumElements(sizes)});
    }
    StateTypes(type, slots);
    return slots;
  }

  void AddIdentities(const SlotList& from, const SlotList& to, const char* name,
                     dialect::Blocked blocked = {}) {
    for (size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
      const rules::Sizes& sizes = graph_.slots[from[i]].sizes;
      if (sizes.size() != graph_.slots[to[i]].sizes.size()) continue;
      Node node;
      node.rule = graph_.rules.Add(rules::IdentityRule(sizes));
      node.operands = {from[i]};
      node.results = {to[i]};
      node.name = name;
      node.blocked = blocked;
      node.is_identity = true;
      graph_.nodes.push_back(std::move(node));
    }
  }

  void StateAnnotation(const ir::Call& call, int slot) {
    const ir::DeviceMesh mesh = dialect::TargetMesh(call);
    State(mesh, dialect::TargetPlacement(call), slot);
    Source& source = graph_.sources.back();
    const std::string name =
        "`" + std::string(graph_.slots[slot].name) + "` in `" + graph_.name + "`";
    const dialect::Terms terms =
        dialect::TermsOf(call, name, static_cast<int>(source.sharding.dims.size()));
    source.open.resize(source.sharding.dims.size());
    for (int dim : terms.open) source.open[dim] = true;
    source.priorities = terms.priorities;
    source.annotates_param = params_.count(call.args()[0].get()) > 0;
    for (int axis : terms.replicated) {
      const mesh::AxisList& axes = meshes_.AxesOf(mesh)[axis];
      source.replicated.insert(source.replicated.end(), axes.begin(), axes.end());
    }
  }

  void StateAll(const ir::DeviceMesh& mesh, const ir::Placement& placement, const SlotList& slots) {
    for (int slot : slots) State(mesh, placement, slot);
  }

  void State(const ir::DeviceMesh& mesh, const ir::Placement& placement, int slot) {
    const SlotInfo& info = graph_.slots[slot];
    CheckFits(info, mesh, placement);
    Source source;
    source.slot = slot;
    source.root = meshes_.RootOf(mesh);
    source.sharding = meshes_.ShardingOf(mesh, placement, rules::ShardableRank(info.type));
    CheckHasElements(info, source);
    graph_.sources.push_back(std::move(source));
  }

  void CheckFits(const SlotInfo& info, const ir::DeviceMesh& mesh, const ir::Placement& placement) {
    const ir::NodeArray<ir::PlacementSpec>& specs = placement.dim_specs();
    if (specs.size() != mesh.shape().size()) {
      TVM_FFI_THROW(ValueError) << "`" << info.name << "` in `" << graph_.name << "`: placement "
                                << ir::Print(placement) << " has "
                                << support::Counted(specs.size(), "entry", "entries")
                                << " for a device mesh of "
                                << support::Counted(mesh.shape().size(), "axis", "axes");
    }
    int rank = rules::ShardableRank(info.type);
    for (const ir::PlacementSpec& spec : specs) {
      int dim = spec.dim();
      if (dim < rank && (dim >= 0 || !spec.IsShard())) continue;
      TVM_FFI_THROW(ValueError) << "`" << info.name << "` in `" << graph_.name << "`: placement "
                                << ir::Print(placement) << " shards dimension " << dim
                                << " of a tensor of "
                                << support::Counted(rank, "dimension", "dimensions");
    }
  }

  void CheckHasElements(const SlotInfo& info, const Source& source) {
    for (size_t d = 0; d < info.sizes.size(); ++d) {
      const mesh::AxisList& axes = source.sharding.dims[d];
      int64_t shards = mesh::NumShards(axes);
      if (info.sizes[d] > 0 && shards > info.sizes[d]) {
        TVM_FFI_THROW(ValueError) << "`" << info.name << "` in `" << graph_.name << "`: dimension "
                                  << d << " of size " << info.sizes[d]
                                  << " has fewer elements than the " << shards
                                  << " shards of mesh axis "
                                  << mesh::ToString(axes, meshes_.Root(source.root));
      }
    }
  }

  // DTensor types in a type are sources for the slots of its tensors.
  void StateTypes(const ir::Type& type, const SlotList& slots) {
    InOrder next(slots);
    ir::ForEachLeaf(type, [&](const ir::Type& leaf) {
      auto dtensor = ir::DTensorType::Cast(leaf);
      if (!dtensor.defined() && !ir::TensorType::Is(leaf)) return;
      const int slot = next.Take();
      if (dtensor.defined()) State(dtensor.device_mesh(), dtensor.placement(), slot);
    });
  }

  static void Append(const SlotList& from, SlotList* to) {
    to->insert(to->end(), from.begin(), from.end());
  }

  FunctionGraph& graph_;
  dialect::MeshTable& meshes_;
  rules::KernelTable& kernels_;
  rules::KnownRules known_rules_;
  rules::Parts parts_;
  std::unordered_set<const ffi::Object*> params_;
  /*! \brief The slot of a cache's last state, by the cache's variable. */
  std::unordered_map<const ffi::Object*, int> last_in_cache_;
  const std::function<bool(const ir::GlobalVar&)>& is_relax_function_;
  const bool warns_;
};

}  // namespace

FunctionGraph BuildGraph(const std::string& name, const ir::Function& function,
                         dialect::MeshTable* meshes, rules::KernelTable* kernels,
                         const std::function<bool(const ir::GlobalVar&)>& is_relax_function,
                         bool warns) {
  FunctionGraph graph;
  graph.function = function;
  graph.name = name;
  GraphBuilder(&graph, meshes, kernels, is_relax_function, warns).Run();
  return graph;
}

}  // namespace distir::propagation
