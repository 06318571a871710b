// Writes a solved instance, one function on one call path, with DTensor types and redistributions.
#include "propagation/emission/instance_emitter.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "dialect/operators/collective.h"
#include "dialect/operators/kv_cache.h"
#include "dialect/operators/local_view.h"
#include "dialect/operators/manual.h"
#include "dialect/operators/segment_exchange.h"
#include "dialect/operators/token_dispatch.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/module/numbered.h"
#include "ir/notes.h"
#include "ir/report.h"
#include "ir/symbolic.h"
#include "propagation/emission/placement_rewriter.h"
#include "propagation/emission/solved_types.h"
#include "rules/call/decision.h"
#include "rules/call/projection.h"
#include "support/error.h"

namespace distir::propagation {

namespace {

/*! \brief `type` with its tensors placed as those of `like` are; the shapes are those of `type`. */
ir::Type PlacedAs(const ir::Type& type, const ir::Type& like) {
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    auto like_tuple = ir::TupleType::Cast(like);
    ffi::Array<ir::Type> fields;
    for (size_t i = 0; i < tuple.fields().size(); ++i)
      fields.push_back(PlacedAs(tuple.fields()[i], like_tuple.fields()[i]));
    return ir::MakeTupleType(fields);
  }
  auto dtensor = ir::DTensorType::Cast(like);
  auto tensor = ir::TensorType::Cast(rules::StripDistribution(type));
  if (!dtensor.defined() || !tensor.defined()) return type;
  return ir::MakeDTensorType(tensor, dtensor.device_mesh(), dtensor.placement());
}

class InstanceEmitter : public PlacementRewriter {
 public:
  InstanceEmitter(const Emission& emission, const Program& program, int instance)
      : PlacementRewriter(emission.meshes),
        emission_(emission),
        program_(program),
        instance_(program.instances[instance]),
        graph_(*instance_.graph),
        solved_(emission.meshes, program, instance),
        decided_(emission.meshes, emission.planner) {}

  /*! \param exact_ret_ty The type that the function must return exactly, or null. */
  ir::Function Run(const ir::Type& exact_ret_ty) {
    exact_ret_ty_ = exact_ret_ty;
    return RewriteFunction(graph_.function);
  }

 private:
  // ---- functions and sequences

  ir::Node RewriteAttrs(const ir::Node& attrs) override {
    std::vector<std::string> names = ir::UnfoldNames(ir::GetAttr(attrs, ir::kStatedAttr));
    std::vector<std::string> open = ir::UnfoldNames(ir::GetAttr(attrs, ir::kOpenAttr));
    std::vector<std::string> taken_back = ir::UnfoldNames(ir::GetAttr(attrs, ir::kTakenBackAttr));
    std::set<std::string> listed(names.begin(), names.end());
    for (const ir::Var& var : stated_) {
      auto now = ir::Var::Cast(Rewrite(var));
      if (!now.defined() || !listed.insert(now.name()).second) continue;
      names.push_back(now.name());
      const std::string shards = StatedShards(var);
      if (!shards.empty()) open.push_back(names.back() + ":" + shards);
      const Source* stated = StatedOf(var);
      if (stated == nullptr) continue;
      for (const auto& [dim, count] : stated->taken_back)
        taken_back.push_back(names.back() + ": " + std::to_string(dim) + " " +
                             std::to_string(count));
    }
    if (names.empty()) return attrs;
    ir::Node noted = ir::WithAttr(attrs, ir::kStatedAttr, ir::FoldNames(names));
    if (!open.empty()) noted = ir::WithAttr(noted, ir::kOpenAttr, ir::FoldNumbered(open));
    if (taken_back.empty()) return noted;
    return ir::WithAttr(noted, ir::kTakenBackAttr, ir::FoldNumbered(taken_back));
  }

  /*! \brief Statement for a variable that is one tensor, or null. */
  const Source* StatedOf(const ir::Var& var) const {
    const SlotList& slots = SlotsOf(var);
    return slots.size() == 1 ? solved_.StateOf(slots[0]).stated : nullptr;
  }

  /*! \brief The stated shards of each dimension, " 2 1", of what has open dimensions. */
  std::string StatedShards(const ir::Var& var) const {
    const Source* stated = StatedOf(var);
    std::string text;
    for (size_t d = 0; stated != nullptr && d < stated->open.size(); ++d)
      text += " " + std::to_string(mesh::NumShards(stated->sharding.dims[d]));
    return stated != nullptr && stated->HasOpen() ? text : "";
  }

  /*! \brief Makes names of variables unique (ir/module/names.h). */
  ffi::String NameFor(const ir::Var& var) override {
    const ffi::String& name = var.name();
    return names_.insert({name.data(), name.size()}).second ? name : FreshName(name);
  }

  ir::Var RewriteParam(const ir::Var& param) override {
    NoteStated(param);
    ir::Type type = solved_.Of(param.ty(), SlotsOf(param));
    return type.same_as(param.ty()) ? param : ir::MakeVar(param.name(), type, false);
  }

  ir::Expr RewriteSeqValue(const ir::Expr& value, const ir::Var& branch_of) override {
    ir::Type global_ty = rules::StripDistribution(value.ty());
    if (branch_of.defined()) return Placed(value, solved_.Of(global_ty, SlotsOf(branch_of)), true);
    if (exact_ret_ty_.defined()) return Placed(value, exact_ret_ty_, true);
    return Placed(value, solved_.Of(global_ty, graph_.results), false);
  }

  ir::Expr RewriteConstant(const ir::Constant& constant) override {
    auto slots = graph_.expr_slots.find(constant.get());
    if (slots == graph_.expr_slots.end() || slots->second.size() != 1) return constant;
    return PlacedConstant(
        constant,
        meshes_.PlacementOf(solved_.StateOf(slots->second[0]).root, Replica(constant)).first);
  }

  // ---- bindings

  /*! \brief Notes DTensor types as stated, unless an earlier run has given them. */
  void NoteStated(const ir::Var& var) {
    if (emission_.is_first && dialect::HasDTensor(var.ty())) stated_.push_back(var);
  }

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    NoteStated(var);
    if (const ir::Call* call = ir::Call::As(value)) {
      EmitCall(var, *call);
    } else if (ir::Constant::Is(value) && ir::TensorType::Is(value.ty())) {
      BindSolved(var, Rewrite(value));
    } else if (const ir::If* branch = ir::If::As(value)) {
      EmitIf(var, *branch);
    } else if (ir::Tuple::Is(value)) {
      // Variables that are Tensors until they are used are placed here.
      Bind(var, Placed(value, solved_.Of(rules::StripDistribution(var.ty()), SlotsOf(var)), false));
    } else {
      FunctionRewriter::RewriteVarBinding(var, value);
    }
  }

  void RewriteMatchCast(const ir::Var& var, const ir::MatchCast& cast) override {
    ir::Type wanted = solved_.Of(rules::StripDistribution(var.ty()), SlotsOf(var));
    ir::Expr value = Placed(cast.value(), PlacedAs(cast.value().ty(), wanted), true);
    ir::Var fresh = ir::MakeVar(var.name(), wanted, ir::DataflowVar::Is(var));
    writer().Add(ir::MakeMatchCast(fresh, value, wanted));
    Replace(var, fresh);
  }

  void EmitCall(const ir::Var& var, const ir::Call& call) {
    const bool is_annotation = dialect::IsAnnotation(call);
    if (is_annotation || ir::IsOp(call.op(), "relax.dist.redistribute")) {
      // A redistribution that is there before any pass was run is the user's.
      if (is_annotation || emission_.is_first) stated_.push_back(var);
      const ir::Expr& tensor = call.args()[0];
      ir::Type wanted = solved_.Of(rules::StripDistribution(var.ty()), SlotsOf(var));
      return BindPlaced(var, ir::Constant::Is(tensor) ? tensor : Rewrite(tensor), wanted);
    }
    if (dialect::IsBarrier(call.op())) {
      ir::Type wanted = solved_.Of(rules::StripDistribution(var.ty()), SlotsOf(var));
      return BindPlaced(var, Rewrite(call.args()[0]), wanted);
    }
    if (dialect::IsShardingGroup(call.op())) return EmitGroup(var, call);
    if (dialect::CrossesRegion(call)) return EmitCrossing(var, call);
    auto callee = instance_.callee_of_call.find(call.get());
    if (callee != instance_.callee_of_call.end()) {
      EmitFunctionCall(var, call, callee->second);
    } else if (dialect::DTensorCollective(call.op()).has_value() ||
               dialect::IsSegmentExchange(call.op()) || dialect::IsOfTokens(call.op())) {
      ir::Expr value = ir::MakeCall(var.ty(), call.op(), RewriteAll(call.args()), call.attrs(),
                                    call.ty_args(), call.span());
      Bind(var, value, var.ty());
    } else {
      EmitOperator(var, call);
    }
  }

  /*! \brief Automatic axes cross the border of a region where they divide both sides evenly; along
   * others the value is redistributed on its side. */
  void EmitCrossing(const ir::Var& var, const ir::Call& call) {
    const dialect::ManualRegion& region = dialect::RegionOfCrossing(call, &meshes_);
    const std::vector<mesh::AxisList> manual = dialect::ManualDims(call, &meshes_);
    const bool enters = dialect::IsEnterManual(call.op());
    if (!enters) stated_.push_back(var);
    const mesh::Sharding& solved = solved_.StateOf(SlotsOf(var)[0]).sharding;
    const auto given = ir::TensorType::Cast(rules::StripDistribution(call.args()[0].ty()));
    const auto made = ir::TensorType::Cast(rules::StripDistribution(var.ty()));
    const rules::Sizes sizes = rules::StaticSizes(enters ? made : given);
    mesh::Sharding outside = solved, inside = solved;
    for (size_t d = 0; d < manual.size(); ++d) {
      mesh::AxisList& axes = inside.dims[d];
      if (!enters)
        axes = mesh::IsPrefix(manual[d], axes) ? region.Inside(mesh::RemovePrefix(axes, manual[d]))
                                               : mesh::AxisList();
      axes = rules::FittingPrefix(axes, sizes[d]);
      outside.dims[d] = manual[d];
      const mesh::AxisList behind = region.Outside(axes);
      outside.dims[d].insert(outside.dims[d].end(), behind.begin(), behind.end());
    }
    const ir::DTensorType from =
        meshes_.TypeOf(given, enters ? region.outer : region.inner, enters ? outside : inside);
    const ir::DTensorType to =
        meshes_.TypeOf(made, enters ? region.inner : region.outer, enters ? inside : outside);
    BindSolved(var, dialect::MakeCrossing(call, Placed(call.args()[0], from, true), to));
  }

  /*! \brief The values of a sharding group, brought to what they share. */
  void EmitGroup(const ir::Var& var, const ir::Call& call) {
    const SlotList& shared = SlotsOf(var);
    std::vector<ir::DTensorType> types;
    CollectPlaced(call.args()[0], &types);
    for (size_t i = 0; i < types.size(); ++i) {
      const int root = solved_.StateOf(shared[0]).root;
      DISTIR_REQUIRE(!types[i].defined() || meshes_.RootOf(types[i]) == root, ValueError)
          << "`" << var.name() << "` in `" << graph_.name
          << "` is a sharding group of tensors on different meshes: one on "
          << meshes_.MeshText(types[i].device_mesh()) << ", one on "
          << mesh::ToString(meshes_.Root(root));
    }
    Bind(var,
         Placed(call.args()[0], solved_.Of(rules::StripDistribution(var.ty()), shared), false));
  }

  void EmitFunctionCall(const ir::Var& var, const ir::Call& call, int callee) {
    const Specialization target = emission_.specialize(program_, callee);
    ffi::Array<ir::Type> wanted = SolvedTypes(&meshes_, program_, callee).OfParams();
    ffi::Array<ir::Expr> args;
    for (size_t i = 0; i < call.args().size(); ++i)
      args.push_back(Placed(call.args()[i], wanted[i], true));
    // The callee's type speaks of its own symbolic variables.
    ir::Type type = PlacedAs(var.ty(), target.ret_ty);
    BindSolved(var,
               ir::MakeCall(type, target.name, args, call.attrs(), call.ty_args(), call.span()));
  }

  void EmitIf(const ir::Var& var, const ir::If& branch) {
    ir::Expr cond = Placed(branch.cond(), ConditionType(branch.cond(), SlotsOf(var)), false);
    ir::SeqExpr true_branch = RewriteSeq(branch.true_branch(), var);
    ir::SeqExpr false_branch = RewriteSeq(branch.false_branch(), var);
    Bind(var, ir::MakeIf(cond, true_branch, false_branch, true_branch.ty()));
  }

  /*! \brief A condition is needed where the branches run. */
  ir::Type ConditionType(const ir::Expr& cond, const SlotList& results) {
    auto tensor = ir::TensorType::Cast(rules::StripDistribution(cond.ty()));
    if (!tensor.defined() || results.empty()) return cond.ty();
    int root = solved_.StateOf(results[0]).root;
    return meshes_.TypeOf(tensor, root, Replica(cond));
  }

  // All tensors of a cache are placed as the first one that the function puts in.
  void EmitCacheCall(const ir::Var& var, const ir::Call& call, dialect::CacheCallKind kind,
                     const Node& node) {
    ffi::Array<ir::Expr> args = RewriteAll(call.args());
    ir::Type type = rules::StripDistribution(var.ty());
    ir::Expr cache = dialect::UsedCache(call, kind);
    auto known = cache_types_.find(cache.get());
    int argument = dialect::CacheTensorArgument(kind);
    ir::DTensorType like = known == cache_types_.end() ? ir::DTensorType() : known->second;
    if (argument >= 0) {
      const ir::Expr& tensor = call.args()[argument];
      auto tensor_ty = ir::TensorType::Cast(rules::StripDistribution(tensor.ty()));
      if (!like.defined()) {
        const SlotState& state = solved_.StateOf(node.results[0]);
        mesh::Sharding sharding = state.sharding;
        if (!sharding.dims.empty()) sharding.dims[0].clear();  // positions come in turns
        like = meshes_.TypeOf(tensor_ty, state.root, sharding);
      }
      args.Set(argument,
               Placed(tensor, ir::MakeDTensorType(tensor_ty, like.device_mesh(), like.placement()),
                      true));
      cache_types_[var.get()] = like;
      if (cache.defined()) cache_types_[cache.get()] = like;
    } else if (like.defined()) {
      type = ir::MakeDTensorType(ir::TensorType::Cast(type), like.device_mesh(), like.placement());
    } else {
      type = solved_.Of(type, SlotsOf(var));
    }
    ffi::Array<ir::Type> ty_args = call.ty_args();
    if (!ty_args.empty()) ty_args = {type};
    BindSolved(var, ir::MakeCall(type, dialect::DistributedCacheCallee(kind), args, call.attrs(),
                                 ty_args, call.span()));
  }

  // Its types state how it is computed. A plain Tensor is placed as solved.
  void EmitLocalView(const ir::Var& var, const ir::Call& call, const Node& node) {
    ffi::Array<ir::Expr> args;
    InOrder slots(node.operands);
    for (const ir::Expr& arg : call.args()) {
      const ir::Type wanted = StatedOrSolved(arg.ty(), &slots);
      args.push_back(dialect::HasDTensor(wanted) ? Placed(arg, wanted, true) : Rewrite(arg));
    }
    BindSolved(var,
               ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args(), call.span()));
  }

  ir::Type StatedOrSolved(const ir::Type& type, InOrder<SlotList>* slots) {
    return ir::MapLeaves(type, [&](const ir::Type& leaf) {
      if (!ir::DTensorType::Is(leaf)) return solved_.Of(leaf, slots);
      slots->Take();
      return leaf;
    });
  }

  void EmitOperator(const ir::Var& var, const ir::Call& call) {
    ir::Type global_ty = rules::StripDistribution(var.ty());
    auto index = graph_.node_of_call.find(call.get());
    if (index == graph_.node_of_call.end()) {
      // R.shape_of: what is known of a shape needs no tensor.
      Bind(var, ir::TensorType::Cast(rules::StripDistribution(call.args()[0].ty())).shape());
      return;
    }
    const Node& node = graph_.nodes[index->second];
    if (dialect::ManualCollective(call.op()).has_value()) {
      dialect::RequireInRegion(call, solved_.StateOf(node.operands[0]).root,
                               "`" + var.name() + "` in `" + graph_.name + "`", &meshes_);
    }
    if (dialect::IsLocalView(call.op())) return EmitLocalView(var, call, node);
    if (auto cache = dialect::CacheCall(call)) return EmitCacheCall(var, call, *cache, node);
    CollectTensors(node, call);
    if (node.operands.empty()) {
      // R.zeros: a Tensor, made by every device alike; each use places it as it needs.
      Bind(var, ir::MakeCall(global_ty, call.op(), RewriteAll(call.args()), call.attrs(),
                             call.ty_args(), call.span()));
      return;
    }
    // Factors that only results have cannot be chosen by a call: they come by redistribution
    // afterwards.
    DecidedCall* decided = decided_.Find(*node.rule, tensors_);
    ffi::Array<ir::Expr> args;
    args.reserve(static_cast<int64_t>(call.args().size()));
    Decided operands(decided->operands);
    for (const ir::Expr& arg : call.args())
      args.push_back(PlacedOn(arg, decided->view, tensors_.root, &operands));
    std::optional<ReadCall> own;
    if (!decided->read || !sizes_are_solved_) own = Read(call, args, global_ty, node, *decided);
    if (!decided->read && sizes_are_solved_) decided->read = own;
    const ReadCall& read = own ? *own : *decided->read;
    // Later passes compute the call as its types say: right in any case, but not as priced.
    if (!read.is_as_decided) ir::Skip("decision", "read back otherwise: " + ir::CalleeName(call));
    InOrder placements(read.results);
    const ir::Type type = ir::MapLeaves(global_ty, [&](const ir::Type& leaf) -> ir::Type {
      const ir::TensorType* tensor = ir::TensorType::As(leaf);
      return tensor != nullptr ? solved_.Placed(*tensor, read.device_mesh, placements.Take())
                               : leaf;
    });
    ffi::Array<ir::Type> ty_args = call.ty_args();
    if (rules::StatesResultType(call.op()) && !ty_args.empty()) ty_args = {type};
    BindSolved(var, ir::MakeCall(type, call.op(), args, call.attrs(), ty_args, call.span()),
               read.has_layout);
  }

  /*! \brief Collects the current shardings of the tensors and the wanted one of the result, which
   * decide how the call is computed. */
  void CollectTensors(const Node& node, const ir::Call& call) {
    tensors_.Clear();
    for (int slot : node.results) {
      const SlotState& state = solved_.StateOf(slot);
      const SlotState& wanted = state.read_as < 0 ? state : program_.slots[state.read_as];
      tensors_.root = std::max(tensors_.root, state.root);
      tensors_.results.push_back(&wanted.sharding);
      tensors_.result_infos.push_back(state.info);
    }
    types_.clear();
    for (const ir::Expr& arg : call.args()) CollectPlaced(arg, &types_);
    sizes_are_solved_ = true;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const SlotState& state = solved_.StateOf(node.operands[i]);
      if (tensors_.root == kNoRoot) tensors_.root = state.root;
      tensors_.operand_infos.push_back(state.info);
      tensors_.operands.push_back(nullptr);
      if (!types_[i].defined()) continue;
      const ir::TensorType& tensor = types_[i].tensor_ty();
      if (!tensor.same_as(state.info->type) &&
          rules::NumElements(rules::StaticSizes(tensor)) != state.info->elements)
        sizes_are_solved_ = false;
      if (!state.info->is_constant && meshes_.RootOf(types_[i]) == tensors_.root)
        tensors_.operands.back() = &meshes_.ShardingOf(types_[i]);
    }
  }

  /*! \brief Reads a call from the types of its arguments; its value has the type `global_ty` of
   * whole tensors. */
  ReadCall Read(const ir::Call& call, const ir::NodeArray<ir::Expr>& args,
                const ir::Type& global_ty, const Node& node, const DecidedCall& decided) {
    const ir::Call placed =
        ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args(), call.span());
    const rules::InferredCall inferred = rules::InferCall(placed, global_ty, *node.rule, &meshes_);
    ReadCall read;
    read.device_mesh = inferred.device_mesh;
    for (const mesh::Sharding& result : inferred.sharding.results)
      read.results.push_back(meshes_.PlacementOn(inferred.device_mesh, inferred.root, result));
    read.is_as_decided = rules::IsAsDecided(*node.rule, decided.sharding, inferred.sharding);
    auto single = ir::DTensorType::Cast(inferred.type);
    read.has_layout = single.defined() && node.results.size() == 1 &&
                      HasLayout(single, solved_.StateOf(node.results[0]));
    return read;
  }

  /*! \brief Binds a value and, where its layout is not the solved one, redistributes it.
   * \param has_layout True if a single tensor has it, where that is known. */
  void BindSolved(const ir::Var& var, const ir::Expr& value,
                  std::optional<bool> has_layout = std::nullopt) {
    const ir::Type& type = value.ty();
    const SlotList& slots = SlotsOf(var);
    bool is_tensor = slots.size() == 1 && !ir::TupleType::Is(type);
    if (!is_tensor) {
      // The fields of a tuple are redistributed where they are used; plain tensors in it are placed
      // now.
      if (HasPlainTensor(type)) {
        ir::Var raw = Emit(var.name(), value);
        ir::Type wanted = solved_.Of(rules::StripDistribution(type), slots);
        ir::Expr placed = PlacedValue(raw, wanted, false);
        Bind(var, placed, placed.ty());
      } else {
        Bind(var, value, type);
      }
      return;
    }
    const SlotState& state = solved_.StateOf(slots[0]);
    if (const ir::DTensorType* dtensor = ir::DTensorType::As(type);
        dtensor != nullptr && (has_layout ? *has_layout : HasLayout(*dtensor, state))) {
      Bind(var, value, type);
      return;
    }
    ir::DTensorType wanted = meshes_.TypeOf(ir::TensorType::Cast(rules::StripDistribution(type)),
                                            state.root, state.sharding);
    ir::Expr raw = ir::Constant::Is(value) ? value : ir::Expr(Emit(var.name(), value));
    BindRedistributed(var, raw, wanted);
  }

  bool HasLayout(const ir::DTensorType& type, const SlotState& state) {
    return meshes_.RootOf(type) == state.root &&
           mesh::SameLayout(meshes_.Root(state.root), meshes_.ShardingOf(type), state.sharding);
  }

  static bool HasPlainTensor(const ir::Type& type) {
    return ir::AnyLeaf(type, [](const ir::Type& leaf) { return ir::TensorType::Is(leaf); });
  }

  const SlotList& SlotsOf(const ir::Var& var) const {
    static const SlotList none;
    auto it = graph_.var_slots.find(var.get());
    return it == graph_.var_slots.end() ? none : it->second;
  }

  const Emission& emission_;
  const Program& program_;
  const Instance& instance_;
  const FunctionGraph& graph_;
  SolvedTypes solved_;
  DecidedCalls decided_;
  // Of the call of an operator that is being written.
  CallTensors tensors_;
  std::vector<ir::DTensorType> types_;  // as emitted; null for constants and plain tensors
  bool sizes_are_solved_ = true;        // types_ and slots agree on the numbers of elements
  ir::Type exact_ret_ty_;
  std::vector<ir::Var> stated_;                 // of the given function
  std::unordered_set<std::string_view> names_;  // of its variables, as far as it is written
  /*! \brief Types of caches with appended values, by variable. */
  std::unordered_map<const ffi::Object*, ir::DTensorType> cache_types_;
};

}  // namespace

ir::Function EmitInstance(const Emission& emission, const Program& program, int instance,
                          const ir::Type& exact_ret_ty) {
  return InstanceEmitter(emission, program, instance).Run(exact_ret_ty);
}

}  // namespace distir::propagation
