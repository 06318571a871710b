#include "propagation/emit.h"

#include <tvm/ffi/error.h>

#include <optional>
#include <utility>

#include "ir/build.h"
#include "ir/renew.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "mesh/common_view.h"
#include "op/collective.h"
#include "op/kv_cache.h"
#include "rules/infer_type.h"
#include "rules/registry.h"

namespace distir {
namespace propagation {

namespace {

bool SamePlacement(const ir::Placement& a, const ir::Placement& b) {
  return a.same_as(b) || op::PlacementDims(a) == op::PlacementDims(b);
}

bool SamePlacement(const ir::DTensorType& a, const ir::DTensorType& b) {
  return a.device_mesh().same_as(b.device_mesh()) && SamePlacement(a.placement(), b.placement());
}

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

}  // namespace

/*! \brief Writes one instance. */
class InstanceEmitter : public ir::FunctionRewriter {
 public:
  InstanceEmitter(Emitter* emitter, const Program& program, int instance)
      : emitter_(*emitter),
        meshes_(emitter->meshes_),
        program_(program),
        instance_(program.instances[instance]),
        graph_(*instance_.graph) {}

  /*! \param exact_ret_ty The type that the function must return exactly, or null. */
  ir::Function Run(const ir::Type& exact_ret_ty) {
    exact_ret_ty_ = exact_ret_ty;
    return RewriteFunction(graph_.function);
  }

  /*! \brief Names of the function's tensors with their slots in the program. */
  std::vector<std::pair<std::string, int>> Variables() const {
    std::vector<std::pair<std::string, int>> variables;
    for (size_t i = 0; i < graph_.slots.size(); ++i) {
      if (!graph_.slots[i].is_constant)
        variables.emplace_back(graph_.slots[i].name, instance_.Slot(i));
    }
    return variables;
  }
  std::vector<Disagreement> TakeDisagreements() { return std::move(disagreements_); }

  ffi::Array<ir::Type> ParamTypes() {
    ffi::Array<ir::Type> types;
    size_t next = 0;
    for (const ir::Var& param : graph_.function.params())
      types.push_back(SolvedType(param.ty(), graph_.params, &next));
    return types;
  }

  /*! \brief The type whose tensors are placed as the slots are solved; non-tensors stay. */
  ir::Type SolvedType(const ir::Type& type, const std::vector<int>& slots, size_t* next) {
    if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
      ffi::Array<ir::Type> fields;
      for (const ir::Type& field : tuple.fields()) fields.push_back(SolvedType(field, slots, next));
      return ir::MakeTupleType(fields);
    }
    if (ir::TensorType::Is(type) || ir::DTensorType::Is(type)) {
      const SlotState& slot = State(slots[(*next)++]);
      return meshes_.TypeOf(ir::TensorType::Cast(rules::StripDistribution(type)), slot.root,
                            slot.sharding);
    }
    return type;
  }

 private:
  const SlotState& State(int local) const { return program_.slots[instance_.Slot(local)]; }

  ir::Type SolvedType(const ir::Type& type, const std::vector<int>& slots) {
    size_t next = 0;
    return SolvedType(type, slots, &next);
  }

  // ---- scopes

  ir::Var RewriteParam(const ir::Var& param) override {
    ir::Type type = SolvedType(param.ty(), graph_.var_slots.at(param.get()));
    return type.same_as(param.ty()) ? param : ir::MakeVar(param.name(), type, false);
  }

  // What a dataflow block made for its own use is not visible behind it.
  void EnterScope() override { scopes_.push_back(redistribution_log_.size()); }
  void LeaveScope() override {
    for (; redistribution_log_.size() > scopes_.back(); redistribution_log_.pop_back()) {
      redistributed_[redistribution_log_.back()].pop_back();
    }
    scopes_.pop_back();
  }

  ir::Expr RewriteSeqValue(const ir::Expr& value, const ir::Var& branch_of) override {
    writing_ = branch_of.defined() ? branch_of.name() : "the result of " + graph_.name;
    ir::Type global_ty = rules::StripDistribution(value.ty());
    if (branch_of.defined()) return Placed(value, SolvedType(global_ty, SlotsOf(branch_of)), true);
    if (exact_ret_ty_.defined()) return Placed(value, exact_ret_ty_, true);
    return Placed(value, SolvedType(global_ty, graph_.results), false);
  }

  ir::Expr RewriteConstant(const ir::Constant& constant) override {
    auto slots = graph_.expr_slots.find(constant.get());
    if (slots == graph_.expr_slots.end() || slots->second.size() != 1) return constant;
    return PlacedConstant(
        constant, meshes_.PlacementOf(State(slots->second[0]).root, Replica(constant)).first);
  }

  // ---- bindings

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    writing_ = var.name();
    if (auto call = ir::Call::Cast(value); call.defined()) {
      EmitCall(var, call);
    } else if (ir::Constant::Is(value) && ir::TensorType::Is(value.ty())) {
      BindSolved(var, Rewrite(value));
    } else if (auto branch = ir::If::Cast(value); branch.defined()) {
      EmitIf(var, branch);
    } else if (ir::Tuple::Is(value)) {
      // Variables that are Tensors until they are used are placed here.
      Bind(var, Placed(value, SolvedType(rules::StripDistribution(var.ty()), SlotsOf(var)), false));
    } else {
      FunctionRewriter::RewriteVarBinding(var, value);
    }
  }

  void RewriteMatchCast(const ir::Var& var, const ir::MatchCast& cast) override {
    ir::Type wanted = SolvedType(rules::StripDistribution(var.ty()), SlotsOf(var));
    ir::Expr value = Placed(cast.value(), PlacedAs(cast.value().ty(), wanted), true);
    ir::Var fresh = ir::MakeVar(var.name(), wanted, ir::DataflowVar::Is(var));
    writer().Add(ir::MakeMatchCast(fresh, value, wanted));
    Replace(var, fresh);
  }

  void EmitCall(const ir::Var& var, const ir::Call& call) {
    if (ir::IsOp(call.op(), "relax.dist.annotate_sharding") ||
        ir::IsOp(call.op(), "relax.dist.redistribute")) {
      return EmitPlaced(var, call.args()[0]);
    }
    auto callee = instance_.callee_of_call.find(call.get());
    if (callee != instance_.callee_of_call.end()) {
      EmitFunctionCall(var, call, callee->second);
    } else if (op::DTensorCollective(call.op()).has_value()) {
      ir::Expr value = ir::MakeCall(var.ty(), call.op(), RewriteAll(call.args()), call.attrs(),
                                    call.ty_args(), call.span());
      Bind(var, value, var.ty());
    } else {
      EmitOperator(var, call);
    }
  }

  void EmitFunctionCall(const ir::Var& var, const ir::Call& call, int callee) {
    Emitter::Specialization target = emitter_.Specialize(program_, callee, nullptr);
    ffi::Array<ir::Type> wanted = InstanceEmitter(&emitter_, program_, callee).ParamTypes();
    ffi::Array<ir::Expr> args;
    for (size_t i = 0; i < call.args().size(); ++i)
      args.push_back(Placed(call.args()[i], wanted[i], true));
    // The callee's type speaks of its own symbolic variables.
    ir::Type type = PlacedAs(var.ty(), target.ret_ty);
    BindSolved(var,
               ir::MakeCall(type, target.name, args, call.attrs(), call.ty_args(), call.span()));
  }

  /*! \brief Binds a tensor placed as it is solved for `var`; without a binding where nothing
   * changes. */
  void EmitPlaced(const ir::Var& var, const ir::Expr& tensor) {
    ir::Type wanted = SolvedType(rules::StripDistribution(var.ty()), SlotsOf(var));
    ir::Expr value = ir::Constant::Is(tensor) ? tensor : Rewrite(tensor);
    auto target = ir::DTensorType::Cast(wanted);
    bool is_new = ir::Var::Is(value) && target.defined() && !Fits(value.ty(), target, false) &&
                  !FindRedistributed(value, target).defined();
    if (!is_new) return Alias(var, PlacedValue(value, wanted, false));
    ir::Var fresh = Bind(var, op::MakeRedistribute(value, target), target);
    Disagree(ir::Var::Cast(value).name(), value.ty(), target);
    KeepRedistributed(value, target, fresh);
  }

  void EmitIf(const ir::Var& var, const ir::If& branch) {
    ir::Expr cond = Placed(branch.cond(), ConditionType(branch.cond(), SlotsOf(var)), false);
    ir::SeqExpr true_branch = RewriteSeq(branch.true_branch(), var);
    ir::SeqExpr false_branch = RewriteSeq(branch.false_branch(), var);
    Bind(var, ir::MakeIf(cond, true_branch, false_branch, true_branch.ty()));
  }

  /*! \brief A condition is needed where the branches run. */
  ir::Type ConditionType(const ir::Expr& cond, const std::vector<int>& results) {
    auto tensor = ir::TensorType::Cast(rules::StripDistribution(cond.ty()));
    if (!tensor.defined() || results.empty()) return cond.ty();
    int root = State(results[0]).root;
    return meshes_.TypeOf(tensor, root, Replica(cond));
  }

  // All tensors of a cache are placed as the first one that the function puts in.
  void EmitCacheCall(const ir::Var& var, const ir::Call& call, op::CacheCallKind kind,
                     const Node& node) {
    ffi::Array<ir::Expr> args = RewriteAll(call.args());
    ir::Type type = rules::StripDistribution(var.ty());
    ir::Expr cache = op::UsedCache(call, kind);
    auto known = cache_types_.find(cache.get());
    int argument = op::CacheTensorArgument(kind);
    ir::DTensorType like = known == cache_types_.end() ? ir::DTensorType() : known->second;
    if (argument >= 0) {
      const ir::Expr& tensor = call.args()[argument];
      auto tensor_ty = ir::TensorType::Cast(rules::StripDistribution(tensor.ty()));
      if (!like.defined()) {
        const SlotState& state = State(node.results[0]);
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
      type = SolvedType(type, SlotsOf(var));
    }
    ffi::Array<ir::Type> ty_args = call.ty_args();
    if (!ty_args.empty()) ty_args = {type};
    BindSolved(var, ir::MakeCall(type, op::DistributedCacheCallee(kind), args, call.attrs(),
                                 ty_args, call.span()));
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
    if (auto cache = op::CacheCall(call)) return EmitCacheCall(var, call, *cache, node);
    // What the tensors have now, and what the result should have, decide how the call is computed.
    std::vector<mesh::Sharding> have(node.operands.size());
    std::vector<const mesh::Sharding*> operands(node.operands.size(), nullptr);
    std::vector<const mesh::Sharding*> results;
    std::vector<double> elements(node.operands.size(), 0);
    int root = kNoRoot;
    for (int slot : node.results) root = std::max(root, State(slot).root);
    std::vector<ir::DTensorType> types;
    for (const ir::Expr& arg : call.args()) CollectPlaced(arg, &types);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const SlotState& state = State(node.operands[i]);
      if (root == kNoRoot) root = state.root;
      elements[i] = state.elements;
      if (state.info->is_constant || !types[i].defined()) continue;
      int have_root;
      have[i] = meshes_.ShardingOf(types[i], &have_root);
      if (have_root == root) operands[i] = &have[i];
    }
    if (node.operands.empty()) {
      // R.zeros: a Tensor, made by every device alike; each use places it as it needs.
      Bind(var, ir::MakeCall(global_ty, call.op(), RewriteAll(call.args()), call.attrs(),
                             call.ty_args(), call.span()));
      return;
    }
    for (int slot : node.results) results.push_back(&State(slot).sharding);
    rules::CallSharding decision = rules::DecideCall(*node.rule, operands, results, elements);
    // Factors that only results have cannot be chosen by a call: they come by redistribution
    // afterwards.
    ir::DeviceMesh view = ViewFor(root, decision.operands, decision.results);
    ffi::Array<ir::Expr> args;
    size_t next = 0;
    for (const ir::Expr& arg : call.args())
      args.push_back(PlacedOn(arg, view, root, decision.operands, &next));
    ir::Call placed =
        ir::MakeCall(call.ty(), call.op(), args, call.attrs(), call.ty_args(), call.span());
    ir::Type type = rules::InferCall(placed, global_ty, *node.rule, &meshes_).type;
    ffi::Array<ir::Type> ty_args = call.ty_args();
    if (rules::StatesResultType(call.op()) && !ty_args.empty()) ty_args = {type};
    BindSolved(var, ir::MakeCall(type, call.op(), args, call.attrs(), ty_args, call.span()));
  }

  /*! \brief Binds a value and, where its layout is not the solved one, redistributes it. */
  void BindSolved(const ir::Var& var, const ir::Expr& value) {
    ir::Type type = value.ty();
    const std::vector<int>& slots = SlotsOf(var);
    bool is_tensor = slots.size() == 1 && !ir::TupleType::Is(type);
    if (!is_tensor) {
      // The fields of a tuple are redistributed where they are used; plain tensors in it are placed
      // now.
      if (HasPlainTensor(type)) {
        ir::Var raw = Emit(var.name(), value);
        ir::Type wanted = SolvedType(rules::StripDistribution(type), slots);
        ir::Expr placed = PlacedValue(raw, wanted, false);
        Bind(var, placed, placed.ty());
      } else {
        Bind(var, value, type);
      }
      return;
    }
    const SlotState& state = State(slots[0]);
    if (auto dtensor = ir::DTensorType::Cast(type);
        dtensor.defined() && HasLayout(dtensor, state)) {
      Bind(var, value, type);
      return;
    }
    ir::DTensorType wanted = meshes_.TypeOf(ir::TensorType::Cast(rules::StripDistribution(type)),
                                            state.root, state.sharding);
    ir::Expr raw = ir::Constant::Is(value) ? value : ir::Expr(Emit(var.name(), value));
    Bind(var, op::MakeRedistribute(raw, wanted), wanted);
    Disagree(var.name(), type, wanted);
  }

  /*! \brief Notes for explanations why a redistribution stands where it does. */
  void Disagree(const std::string& name, const ir::Type& have, const ir::DTensorType& wanted) {
    auto dtensor = ir::DTensorType::Cast(have);
    std::string from = dtensor.defined() ? PlacementText(dtensor) : "a copy on every device";
    disagreements_.push_back({name, "`" + name + "` is redistributed from " + from + " to " +
                                        PlacementText(wanted) + " for `" + writing_ + "`"});
  }

  static std::string PlacementText(const ir::DTensorType& type) {
    std::string text;
    for (int dim : op::PlacementDims(type.placement())) {
      text += text.empty() ? "\"" : ", ";
      text += dim < 0 ? "R" : "S[" + std::to_string(dim) + "]";
    }
    return text + "\" on " + mesh::ToString(op::ToMesh(type.device_mesh()));
  }

  bool HasLayout(const ir::DTensorType& type, const SlotState& state) {
    int root;
    mesh::Sharding sharding = meshes_.ShardingOf(type, &root);
    return root == state.root && mesh::Canonical(sharding) == mesh::Canonical(state.sharding);
  }

  static bool HasPlainTensor(const ir::Type& type) {
    if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
      for (const ir::Type& field : tuple.fields()) {
        if (HasPlainTensor(field)) return true;
      }
    }
    return ir::TensorType::Is(type);
  }

  const std::vector<int>& SlotsOf(const ir::Var& var) const {
    static const std::vector<int> none;
    auto it = graph_.var_slots.find(var.get());
    return it == graph_.var_slots.end() ? none : it->second;
  }

  // ---- expressions

  static mesh::Sharding Replica(const ir::Expr& tensor) {
    auto type = ir::TensorType::Cast(rules::StripDistribution(tensor.ty()));
    return mesh::Sharding::Replicated(rules::ShardableRank(type));
  }

  ir::Expr PlacedConstant(const ir::Expr& constant, const ir::DeviceMesh& view) {
    auto type = ir::TensorType::Cast(rules::StripDistribution(constant.ty()));
    std::vector<int> replica(view.shape().size(), -1);
    return ir::MakeTensorConstant(ir::Constant::Cast(constant).value(),
                                  ir::MakeDTensorType(type, view, ir::MakePlacement(replica)));
  }

  /*! \brief The types of an argument's tensors as emitted; null for constants and plain tensors. */
  void CollectPlaced(const ir::Expr& arg, std::vector<ir::DTensorType>* out) {
    if (auto tuple = ir::Tuple::Cast(arg); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) CollectPlaced(field, out);
    } else if (ir::Constant::Is(arg)) {
      if (ir::TensorType::Is(arg.ty()) || ir::DTensorType::Is(arg.ty()))
        out->push_back(ir::DTensorType());
    } else if (ir::Var::Is(arg) || ir::TupleGetItem::Is(arg)) {
      CollectTypes(Rewrite(arg).ty(), out);
    }
  }
  static void CollectTypes(const ir::Type& type, std::vector<ir::DTensorType>* out) {
    if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
      for (const ir::Type& field : tuple.fields()) CollectTypes(field, out);
    } else if (ir::DTensorType::Is(type) || ir::TensorType::Is(type)) {
      out->push_back(ir::DTensorType::Cast(type));
    }
  }

  /*! \brief A mesh on which all shardings of a call can be named: the root if possible. */
  ir::DeviceMesh ViewFor(int root, const std::vector<mesh::Sharding>& operands,
                         const std::vector<mesh::Sharding>& results) {
    const mesh::Mesh& root_mesh = meshes_.Root(root);
    std::vector<mesh::AxisList> lists;
    bool root_serves = true;
    for (const auto* shardings : {&operands, &results}) {
      for (const mesh::Sharding& sharding : *shardings) {
        if (sharding.IsReplicated()) continue;
        root_serves =
            root_serves && mesh::ToPlacementOn(root_mesh, root_mesh, sharding).has_value();
        lists.insert(lists.end(), sharding.dims.begin(), sharding.dims.end());
      }
    }
    if (root_serves) return meshes_.Intern(root_mesh);
    // The lists come from one factor rule, so they agree on the order of what they share.
    std::optional<mesh::Mesh> view = mesh::CommonView(root_mesh, lists);
    TVM_FFI_ICHECK(view.has_value()) << "the shardings of a call have no common mesh";
    return meshes_.Intern(*view);
  }

  /*! \brief An argument with each of its tensors placed on `view` as decided. */
  ir::Expr PlacedOn(const ir::Expr& arg, const ir::DeviceMesh& view, int root,
                    const std::vector<mesh::Sharding>& decided, size_t* next) {
    if (auto tuple = ir::Tuple::Cast(arg); tuple.defined()) {
      ffi::Array<ir::Expr> fields;
      for (const ir::Expr& field : tuple.fields())
        fields.push_back(PlacedOn(field, view, root, decided, next));
      return ir::MakeTuple(fields);
    }
    ir::Expr value = ir::Constant::Is(arg) ? arg : Rewrite(arg);
    // Most arguments are where they should be; that is seen without making a type.
    if (auto have = ir::DTensorType::Cast(value.ty());
        have.defined() && have.device_mesh().same_as(view)) {
      ir::Placement wanted = meshes_.PlacementOn(view, root, decided[*next]);
      if (wanted.defined() && SamePlacement(have.placement(), wanted)) {
        ++*next;
        return value;
      }
    }
    return PlacedValue(value, TypeOn(arg.ty(), view, root, decided, next), true);
  }

  ir::Type TypeOn(const ir::Type& type, const ir::DeviceMesh& view, int root,
                  const std::vector<mesh::Sharding>& decided, size_t* next) {
    if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
      ffi::Array<ir::Type> fields;
      for (const ir::Type& field : tuple.fields())
        fields.push_back(TypeOn(field, view, root, decided, next));
      return ir::MakeTupleType(fields);
    }
    if (!ir::TensorType::Is(type) && !ir::DTensorType::Is(type)) return type;
    auto tensor = ir::TensorType::Cast(rules::StripDistribution(type));
    const mesh::Sharding& sharding = decided[(*next)++];
    ir::Placement placement = meshes_.PlacementOn(view, root, sharding);
    if (!placement.defined()) return meshes_.TypeOf(tensor, root, sharding);
    return ir::MakeDTensorType(tensor, view, placement);
  }

  /*! \brief An original expression, rewritten and placed as `wanted`; `exact` asks for the same
   * mesh object too. */
  ir::Expr Placed(const ir::Expr& expr, const ir::Type& wanted, bool exact) {
    return PlacedValue(ir::Constant::Is(expr) ? expr : Rewrite(expr), wanted, exact);
  }

  ir::Expr PlacedValue(const ir::Expr& value, const ir::Type& wanted, bool exact) {
    if (auto tuple_ty = ir::TupleType::Cast(wanted); tuple_ty.defined()) {
      if (!ir::Tuple::Is(value) && FitsAll(value.ty(), tuple_ty, exact)) return value;
      ffi::Array<ir::Expr> fields;
      for (size_t i = 0; i < tuple_ty.fields().size(); ++i) {
        fields.push_back(
            PlacedValue(Field(value, static_cast<int>(i)), tuple_ty.fields()[i], exact));
      }
      return ir::MakeTuple(fields);
    }
    auto target = ir::DTensorType::Cast(wanted);
    if (!target.defined()) return value;
    if (ir::Constant::Is(value) && !ir::DTensorType::Is(value.ty())) {
      ir::Expr constant = PlacedConstant(value, target.device_mesh());
      if (SamePlacement(ir::DTensorType::Cast(constant.ty()), target)) return constant;
      return Redistributed(constant, target);
    }
    if (Fits(value.ty(), target, exact)) return value;
    return Redistributed(value, target);
  }

  bool FitsAll(const ir::Type& have, const ir::TupleType& wanted, bool exact) {
    auto tuple = ir::TupleType::Cast(have);
    for (size_t i = 0; i < wanted.fields().size(); ++i) {
      if (auto nested = ir::TupleType::Cast(wanted.fields()[i]); nested.defined()) {
        if (!FitsAll(tuple.fields()[i], nested, exact)) return false;
      } else if (auto target = ir::DTensorType::Cast(wanted.fields()[i]); target.defined()) {
        if (!Fits(tuple.fields()[i], target, exact)) return false;
      }
    }
    return true;
  }

  bool Fits(const ir::Type& have, const ir::DTensorType& wanted, bool exact) {
    auto dtensor = ir::DTensorType::Cast(have);
    if (!dtensor.defined()) return false;
    if (SamePlacement(dtensor, wanted)) return true;
    if (exact) return false;
    int have_root, wanted_root;
    mesh::Sharding have_sharding = meshes_.ShardingOf(dtensor, &have_root);
    mesh::Sharding wanted_sharding = meshes_.ShardingOf(wanted, &wanted_root);
    return have_root == wanted_root &&
           mesh::Canonical(have_sharding) == mesh::Canonical(wanted_sharding);
  }

  /*! \brief A field of a tuple, bound: only variables may stand in tuples and calls. */
  ir::Expr Field(const ir::Expr& value, int index) {
    if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) return tuple.fields()[index];
    return Emit("lv", ir::MakeTupleGetItem(value, index));
  }

  ir::Expr Redistributed(const ir::Expr& value, const ir::DTensorType& target) {
    if (ir::Var known = FindRedistributed(value, target); known.defined()) return known;
    ir::Expr argument = value;
    if (ir::TupleGetItem::Is(value)) argument = Emit("lv", value);
    std::string name = ir::Var::Is(argument) ? ir::Var::Cast(argument).name() : "lv";
    ir::Var var = Emit(name, op::MakeRedistribute(argument, target));
    Disagree(name, argument.ty(), target);
    KeepRedistributed(value, target, var);
    return var;
  }

  ir::Var FindRedistributed(const ir::Expr& value, const ir::DTensorType& target) const {
    auto known = redistributed_.find(value.get());
    if (known == redistributed_.end()) return ir::Var();
    for (const auto& [type, var] : known->second) {
      if (SamePlacement(type, target)) return var;
    }
    return ir::Var();
  }

  void KeepRedistributed(const ir::Expr& value, const ir::DTensorType& target, const ir::Var& var) {
    if (!ir::Var::Is(value)) return;
    redistributed_[value.get()].emplace_back(target, var);
    redistribution_log_.push_back(value.get());
  }

  Emitter& emitter_;
  op::MeshTable& meshes_;
  const Program& program_;
  const Instance& instance_;
  const FunctionGraph& graph_;
  ir::Type exact_ret_ty_;
  /*! \brief How a cache holds what was appended, by its variable. */
  std::unordered_map<const ffi::Object*, ir::DTensorType> cache_types_;
  std::string writing_;  // what is being written, for explanations
  std::vector<Disagreement> disagreements_;
  std::vector<size_t> scopes_;
  std::unordered_map<const ffi::Object*, std::vector<std::pair<ir::DTensorType, ir::Var>>>
      redistributed_;
  std::vector<const ffi::Object*>
      redistribution_log_;  // keys of redistributed_ in the order of entry
};

void Emitter::EmitRoot(const Program& program, std::vector<Step> steps, const std::string& name) {
  record_ = MakeRecord(program, std::move(steps), meshes_);
  Specialize(program, 0, &name);
}

Emitter::Specialization Emitter::Specialize(const Program& program, int index,
                                            const std::string* root_name) {
  const Instance& instance = program.instances[index];
  const FunctionGraph& graph = *instance.graph;
  // The signature: how every parameter and result is placed.
  std::vector<int64_t> key{reinterpret_cast<int64_t>(graph.function.get()), root_name != nullptr};
  for (const auto* slots : {&graph.params, &graph.results}) {
    for (int local : *slots) {
      const SlotState& slot = program.slots[instance.Slot(local)];
      key.push_back(-1 - slot.root);
      for (const mesh::AxisList& axes : slot.sharding.dims) {
        key.push_back(-1);
        for (const mesh::AxisRef& ref : axes)
          key.insert(key.end(), {ref.axis, ref.pre_size, ref.size});
      }
    }
  }
  auto found = specializations_.find(key);
  if (found != specializations_.end()) return found->second;

  InstanceEmitter emitter(this, program, index);
  ir::Type exact_ret_ty;
  std::string name = root_name != nullptr ? *root_name : unique_name_(graph.name);
  ir::GlobalVar gv = ir::MakeGlobalVar(name);
  if (instance.is_recursive) {
    // Calls inside the body need the signature before the body is written.
    size_t next = 0;
    exact_ret_ty = emitter.SolvedType(rules::StripDistribution(graph.function.body().body().ty()),
                                      graph.results, &next);
    specializations_[key] = {gv, exact_ret_ty};
    ir::SetType(gv, ir::MakeFuncType(emitter.ParamTypes(), exact_ret_ty, graph.function.is_pure()));
  }
  ir::Function function = emitter.Run(exact_ret_ty);
  if (root_name == nullptr) {
    // A specialised copy is nobody's entry point.
    ir::Node attrs = ir::WithAttr(function.attrs(), "global_symbol", ffi::Any());
    function = ir::MakeFunction(function.params(), function.body(), function.ret_ty(),
                                function.is_pure(), attrs);
  }
  if (!copied_.insert(graph.function.get()).second) function = ir::RenewVars(function);
  if (!instance.is_recursive) ir::SetType(gv, function.ty());
  Specialization result{gv, function.ret_ty()};
  specializations_[key] = result;
  Remember(function, record_, emitter.Variables(), emitter.TakeDisagreements());
  functions_.push_back({gv, function});
  return result;
}

}  // namespace propagation
}  // namespace distir
