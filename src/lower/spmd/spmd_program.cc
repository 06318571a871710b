// Rewrites one function to the program of one SPMD group.
#include "lower/spmd/spmd_program.h"

#include <tvm/ffi/error.h>

#include <functional>
#include <numeric>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dialect/operators/collective.h"
#include "dialect/operators/fused_norm.h"
#include "dialect/operators/kv_cache.h"
#include "dialect/operators/manual.h"
#include "dialect/operators/segment_exchange.h"
#include "dialect/operators/token_dispatch.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/make_operators.h"
#include "ir/notes.h"
#include "ir/rewriter.h"
#include "ir/size_text.h"
#include "ir/symbolic.h"
#include "lower/local/local_shardings.h"
#include "lower/spmd/local_collective.h"
#include "lower/spmd/local_operator.h"
#include "mesh/collective_record.h"
#include "padding/extents.h"
#include "rules/call/infer_type.h"
#include "rules/tir/rule.h"

namespace distir::lower {

namespace {

using mesh::CollectiveKind;

constexpr const char* kNumInput = "num_input";

}  // namespace

bool IsPresent(const ir::Type& type, const SpmdContext& context) {
  if (context.roots == nullptr) return true;
  if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
    for (const ir::Type& field : tuple.fields()) {
      if (IsPresent(field, context)) return true;
    }
    return tuple.fields().empty();
  }
  auto dtensor = ir::DTensorType::Cast(type);
  if (!dtensor.defined()) return true;
  const int root = context.meshes->RootOf(dtensor.device_mesh());
  return context.roots->count(context.meshes->DevicesOf(root)) > 0;
}

namespace {

class SpmdRewriter : public ir::FunctionRewriter {
 public:
  SpmdRewriter(MeshPart part, const std::string& name, const SpmdContext& context)
      : part_(std::move(part)),
        name_(name),
        context_(context),
        types_(part_.function, name, context.meshes, PresenceIn(context)),
        collectives_(context.meshes, context.groups, &types_),
        shardings_(context.meshes) {}

  SpmdProgram Run() {
    SpmdProgram worker{RewriteFunction(part_.function), {}, {}, {}, {}};
    worker.params = std::move(part_.params);
    worker.results = std::move(part_.results);
    worker.virtual_stages = std::move(virtual_stages_);
    if (!types_.undefined().empty()) TakeSizes(&worker);
    if (ir::GetAttr(part_.function.attrs(), padding::kTakesSizesAttr) != nullptr)
      SplitOffSizes(&worker);
    return worker;
  }

 private:
  bool HasOneGroup() const { return context_.roots == nullptr; }

  static std::function<bool(const ir::Type&)> PresenceIn(const SpmdContext& context) {
    if (context.roots == nullptr) return nullptr;
    return [&context](const ir::Type& type) { return IsPresent(type, context); };
  }

  /*! \brief Its last parameter is sizes already: padded dimensions do not define them. */
  void SplitOffSizes(SpmdProgram* worker) const {
    const ir::NodeArray<ir::Var>& params = worker->function.params();
    const auto type = ir::ShapeType::Cast(params[params.size() - 1].ty());
    for (const ir::Expr& size : *type.values()) {
      const ir::Var var = ir::Var::Cast(size);
      if (!var.defined()) {
        TVM_FFI_THROW(ValueError) << "`" << name_ << "` is padded for any number of a symbolic "
                                  << "size, which a pass has made " << ir::SizeText(size)
                                  << " since; run it before PropagateSharding";
      }
      worker->sizes.push_back(var.name());
    }
    worker->params.pop_back();
  }

  /*! \brief Adds a last parameter for the sizes that only parameters on meshes of other groups
   * define. */
  void TakeSizes(SpmdProgram* worker) {
    ffi::Array<ir::Expr> sizes;
    for (const ir::Var& var : types_.undefined()) {
      if (!context_.index->IsOfParams(var)) {
        TVM_FFI_THROW(ValueError) << "in `" << name_ << "`: symbolic dimension `" << var.name()
                                  << "` is used on a mesh that no parameter brings it to";
      }
      sizes.push_back(var);
      worker->sizes.push_back(var.name());
    }
    const ir::Function& function = worker->function;
    ffi::Array<ir::Var> params = function.params();
    params.push_back(ir::MakeVar("sizes", ir::MakeShapeType(sizes), false));
    worker->function = ir::MakeFunction(params, function.body(), function.ret_ty(),
                                        function.is_pure(), function.attrs());
  }

  // ---- what is here

  /*! \brief The type on this worker, without the fields of tuples that lie elsewhere. */
  ir::Type LocalPart(const ir::Type& type) {
    if (HasOneGroup()) return types_.Local(type);
    if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
      ffi::Array<ir::Type> fields;
      for (const ir::Type& field : tuple.fields()) {
        if (IsPresent(field, context_)) fields.push_back(LocalPart(field));
      }
      return ir::MakeTupleType(fields);
    }
    return types_.Local(type);
  }

  bool IsAbsent(const ir::Expr& expr) const {
    if (HasOneGroup()) return false;
    if (auto var = ir::Var::Cast(expr); var.defined())
      return absent_.count(var.get()) > 0 ||
             (context_.index->Defines(var) && part_.vars.count(var.get()) == 0);
    if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) {
        if (!IsAbsent(field)) return false;
      }
      return !tuple.fields().empty();
    }
    if (auto item = ir::TupleGetItem::Cast(expr); item.defined()) {
      return IsAbsent(item.tuple()) || !IsPresent(item.ty(), context_);
    }
    return !IsPresent(expr.ty(), context_);
  }

  bool AnyAbsent(const ir::NodeArray<ir::Expr>& exprs) const {
    for (const ir::Expr& expr : exprs) {
      if (auto tuple = ir::Tuple::Cast(expr);
          tuple.defined() ? AnyAbsent(tuple.fields()) : IsAbsent(expr))
        return true;
    }
    return false;
  }

  // ---- the function

  ir::Var RewriteParam(const ir::Var& param) override {
    if (!IsPresent(param.ty(), context_)) {
      absent_.insert(param.get());
      return ir::Var();
    }
    if (ir::PrimType::Is(param.ty())) return param;  // sizes may name it
    ir::Var local = ir::MakeVar(param.name(), LocalPart(param.ty()), false);
    shardings_.Add(local, param.ty());
    return local;
  }

  // A send has an effect, which dataflow blocks must not have.
  bool KeepsDataflow() const override { return HasOneGroup(); }
  bool RewritePurity(bool is_pure) override { return is_pure && HasOneGroup(); }

  ir::Node RewriteAttrs(const ir::Node& given) override {
    const ir::Node attrs = ir::WithAttr(given, ir::kShardingsAttr, shardings_.Attr());
    auto num_input = ir::GetAttr(attrs, kNumInput).as<int64_t>();
    if (HasOneGroup() || !num_input.has_value()) return attrs;
    int64_t present = 0;
    for (int place : part_.params) present += place < *num_input;
    return ir::WithAttr(attrs, kNumInput, present);
  }

  ir::Expr RewriteSeqValue(const ir::Expr& value, const ir::Var&) override {
    return IsAbsent(value) ? ir::Expr(ir::MakeTuple({})) : Rewrite(value);
  }

  // ---- expressions

  ir::Type RewriteType(const ir::Type& type) override { return LocalPart(type); }
  ir::Expr RewriteConstant(const ir::Constant& constant) override {
    if (!ir::DTensorType::Is(constant.ty())) return constant;
    return ir::MakeTensorConstant(constant.value(), types_.Local(constant.ty()));
  }
  ir::Expr RewriteLeaf(const ir::Expr& leaf) override {
    if (auto shape = ir::ShapeExpr::Cast(leaf); shape.defined()) {
      ffi::Array<ir::Expr> values;
      for (const ir::Expr& value : shape.values()) values.push_back(types_.LocalValue(value));
      return ir::MakeShape(values);
    }
    return types_.LocalValue(leaf);
  }

  ir::Expr Rewrite(const ir::Expr& expr) override {
    // A symbolic size as an argument.
    if (ir::Var::Is(expr) && ir::PrimType::Is(expr.ty())) {
      ir::Expr local = types_.LocalValue(expr);
      if (!local.same_as(expr)) return local;
    }
    if (!HasOneGroup()) {
      if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
        ffi::Array<ir::Expr> fields;
        for (const ir::Expr& field : tuple.fields()) {
          if (!IsAbsent(field)) fields.push_back(Rewrite(field));
        }
        return ir::MakeTuple(fields);
      }
      if (auto item = ir::TupleGetItem::Cast(expr); item.defined()) {
        int index = 0;
        auto type = ir::TupleType::Cast(item.tuple().ty());
        for (int i = 0; i < item.index(); ++i) index += IsPresent(type.fields()[i], context_);
        return ir::MakeTupleGetItem(Rewrite(item.tuple()), index);
      }
      if (ir::Var::Is(expr) && IsAbsent(expr)) {
        TVM_FFI_THROW(ValueError)
            << "in `" << name_ << "`: `" << ir::Var::Cast(expr).name()
            << "` is used on a mesh that it was not moved to; redistribute it first";
      }
    }
    return FunctionRewriter::Rewrite(expr);
  }

  // ---- bindings

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    InVirtualStage(var, [&] { LowerBinding(var, value); });
    NoteSharding(var);
  }

  /*! \brief Notes how the variable that stands for one is sharded, if it has the same tensors. */
  void NoteSharding(const ir::Var& var) {
    if (absent_.count(var.get()) > 0 || (!HasOneGroup() && ir::TupleType::Is(var.ty()))) return;
    if (auto local = ir::Var::Cast(Rewrite(var)); local.defined()) shardings_.Add(local, var.ty());
  }

  /*! \brief Notes the virtual stage of what `write` adds for a binding of the body. */
  template <typename Write>
  void InVirtualStage(const ir::Var& var, Write write) {
    const std::optional<int> virtual_stage =
        context_.virtual_stages == nullptr ? std::nullopt : context_.virtual_stages->Of(var);
    if (!virtual_stage) return write();
    virtual_stage_ = *virtual_stage;
    write();
    virtual_stages_.resize(writer().num_bindings(), virtual_stage_);
  }

  void LowerBinding(const ir::Var& var, const ir::Expr& value) {
    if (auto call = ir::Call::Cast(value); call.defined()) return LowerCall(var, call);
    if (auto branch = ir::If::Cast(value); branch.defined() && !HasOneGroup()) {
      if (!IsAnyPresent(branch.true_branch()) && !IsAnyPresent(branch.false_branch())) {
        absent_.insert(var.get());
        return;
      }
      if (IsAbsent(branch.cond())) {
        TVM_FFI_THROW(ValueError) << "in `" << name_ << "`: the condition of `" << var.name()
                                  << "` lies on another mesh than a branch; redistribute it first";
      }
      FunctionRewriter::RewriteVarBinding(var, value);
      if (!IsPresent(var.ty(), context_)) absent_.insert(var.get());
      return;
    }
    if (IsAbsent(value)) {
      absent_.insert(var.get());
      return;
    }
    FunctionRewriter::RewriteVarBinding(var, value);
  }

  void RewriteMatchCast(const ir::Var& var, const ir::MatchCast& cast) override {
    if (IsAbsent(cast.value())) {
      absent_.insert(var.get());
    } else {
      InVirtualStage(var, [&] { FunctionRewriter::RewriteMatchCast(var, cast); });
      NoteSharding(var);
    }
  }

  /*! \brief True if a branch has a DTensor of this group: one that it makes, sends or returns. */
  bool IsAnyPresent(const ir::SeqExpr& branch) const {
    auto is_here = [this](const ir::Type& type) {
      return dialect::HasDTensor(type) && IsPresent(type, context_);
    };
    bool found = is_here(branch.body().ty());
    ir::VisitBindings(branch, [&](const ir::Binding& binding) {
      found = found || is_here(binding.var().ty());
      ir::Call call = ir::BoundCall(binding);
      if (found || !call.defined()) return;
      for (const ir::Expr& arg : call.args()) found = found || is_here(arg.ty());
    });
    return found;
  }

  void LowerCall(const ir::Var& var, const ir::Call& call) {
    if (auto callee = ir::GlobalVar::Cast(call.op()); callee.defined())
      return LowerFunctionCall(var, call, callee);
    auto collective = dialect::DTensorCollective(call.op());
    if (collective.has_value() && mesh::HasPieces(*collective)) {
      return LowerTransfer(var, call, *collective);
    }
    if (!IsPresent(var.ty(), context_) || AnyAbsent(call.args())) {
      absent_.insert(var.get());
      return;
    }
    if (collective.has_value()) return LowerCollective(var, call, *collective);
    if (dialect::CrossesRegion(call)) return Alias(var, Rewrite(call.args()[0]));
    if (dialect::ManualCollective(call.op()).has_value()) return LowerManual(var, call);
    if (dialect::IsFusedNorm(call.op()))
      return void(Bind(var, collectives_.OfFusedNorm(call, RewriteAll(call.args()))));
    if (dialect::MovesTokens(call.op()))
      return void(Bind(var, collectives_.OfTokens(call, RewriteAll(call.args()))));
    if (dialect::IsTokenKernel(call.op())) {
      return void(Bind(var, dialect::MakeLocalTokenKernel(call, types_.Local(call.ty()),
                                                          RewriteAll(call.args()))));
    }
    if (dialect::IsSegmentExchange(call.op())) {
      return MoveBlocks(var, Rewrite(call.args()[0]), IsInRegion(var),
                        [&](const ir::Expr& value, const ir::Type& type) {
                          return dialect::MakeLocalSegmentExchange(
                              value, type, context_.plans->SegmentPlanOf(call));
                        });
    }
    if (ir::IsOp(call.op(), "relax.dist.redistribute_replica_to_shard")) {
      return LowerCollective(var, call, CollectiveKind::kSlice);
    }
    if (ir::IsOp(call.op(), "relax.dist.redistribute") ||
        ir::IsOp(call.op(), "relax.dist.annotate_sharding")) {
      // Only placements that change nothing are left: LegalizeRedistribute has run.
      return Alias(var, Rewrite(call.args()[0]));
    }
    if (ir::IsOp(call.op(), "relax.shape_of")) {
      // The shape meant is the global one.
      auto tensor = ir::TensorType::Cast(rules::StripDistribution(call.args()[0].ty()));
      if (ir::HasKnownShape(tensor)) {
        Bind(var, RewriteLeaf(tensor.shape()));
        return;
      }
    }
    if (auto cache = dialect::CacheCall(call)) {
      const ffi::Array<ir::Expr> args = RewriteAll(call.args());
      return void(
          Bind(var, LocalCacheCall(call, *cache, var.ty(), args, &types_, context_.meshes)));
    }
    TVM_FFI_ICHECK(!rules::KernelTable::IsKernelCall(call.op()) || !dialect::HasDTensor(call.ty()))
        << "`" << var.name() << "` in `" << name_
        << "`: LowerGlobalViewToLocalView has not been run";
    Bind(var, LocalOperatorCall(call, var.ty(), RewriteAll(call.args()), &types_));
  }

  void LowerFunctionCall(const ir::Var& var, const ir::Call& call, const ir::GlobalVar& callee) {
    std::optional<ir::GlobalVar> version = context_.callee(callee);
    if (!version) {
      absent_.insert(var.get());
      return;
    }
    ffi::Array<ir::Expr> args;
    for (const ir::Expr& arg : call.args()) {
      if (!IsAbsent(arg)) args.push_back(Rewrite(arg));
    }
    ir::Expr target = version->defined() ? ir::Expr(*version) : ir::Expr(callee);
    Bind(var, ir::MakeCall(LocalPart(call.ty()), target, args, call.attrs(), call.ty_args(),
                           call.span()));
    if (!IsPresent(var.ty(), context_)) absent_.insert(var.get());
  }

  void LowerTransfer(const ir::Var& var, const ir::Call& call, CollectiveKind kind) {
    bool sends = !IsAbsent(call.args()[0]);
    bool receives = IsPresent(var.ty(), context_);
    if (!receives) absent_.insert(var.get());
    if (!sends && !receives) return;
    ffi::Any plan = context_.plans->PlanOf(call);
    ir::Type local = types_.Local(var.ty());
    if (sends && receives) {
      const std::string op_name = abi::OnTensors(mesh::RecordedAs(kind));
      MoveBlocks(var, Rewrite(call.args()[0]), IsInRegion(var),
                 [&](const ir::Expr& value, const ir::Type& type) {
                   return ir::MakeOpCall(type, op_name.c_str(), {value}, {{"plan", plan}}, {type});
                 });
    } else if (receives) {
      Bind(var, ir::MakeOpCall(local, abi::OnTensors(abi::Collective::kRecv).c_str(), {},
                               {{"plan", plan}}, {local}));
    } else {
      if (context_.virtual_stages != nullptr && context_.virtual_stages->Of(var))
        virtual_stage_ = context_.virtual_stages->OfSend(var);
      Emit(var.name(),
           ir::MakeOpCall(ir::MakeTupleType({}), abi::OnTensors(abi::Collective::kSend).c_str(),
                          {Rewrite(call.args()[0])}, {{"plan", plan}}));
    }
  }

  bool IsInRegion(const ir::Var& var) const {
    return context_.plans->MovesStack(ir::DTensorType::Cast(var.ty()));
  }

  /*! \brief Binds a move of a worker's block; `stacks` as the only one of its part of a stack. */
  template <typename Move>
  void MoveBlocks(const ir::Var& var, const ir::Expr& value, bool stacks, const Move& move) {
    const auto local = ir::TensorType::Cast(types_.Local(var.ty()));
    if (!stacks) return void(Bind(var, move(value, local)));
    const ir::Expr one = Emit(var.name(), Reshaped(value, Stacked(value.ty())));
    const ir::Expr moved = Emit(var.name(), move(one, Stacked(local)));
    Bind(var, Reshaped(moved, local));
  }

  static ir::TensorType Stacked(const ir::Type& type) {
    auto tensor = ir::TensorType::Cast(type);
    ffi::Array<ir::Expr> shape = {ir::MakeInt(1)};
    for (const ir::Expr& dim : ir::ShapeOf(tensor)) shape.push_back(dim);
    return ir::MakeTensorType(shape, tensor);
  }

  static ir::Call Reshaped(const ir::Expr& value, const ir::TensorType& type) {
    const ir::Expr shape = ir::MakeShape(ir::ShapeOf(type));
    ir::Call call = ir::make::kReshape(value, shape).cast<ir::Call>();
    ir::SetType(call, type);
    return call;
  }

  void LowerManual(const ir::Var& var, const ir::Call& call) {
    auto type = ir::DTensorType::Cast(call.args()[0].ty());
    dialect::RequireInRegion(call, context_.meshes->RootOf(type),
                             "`" + var.name() + "` in `" + name_ + "`", context_.meshes);
    const ir::Expr value = Rewrite(call.args()[0]);
    if (*dialect::ManualCollective(call.op()) == abi::Collective::kPermute) {
      return MoveBlocks(var, value, true, [&](const ir::Expr& one, const ir::Type& stacked) {
        return dialect::MakeLocalSegmentExchange(one, stacked,
                                                 context_.plans->PermutationPlanOf(call));
      });
    }
    const ir::Expr lowered = collectives_.OfManual(call, value);
    return lowered.same_as(value) ? Alias(var, value) : void(Bind(var, lowered));
  }

  void LowerCollective(const ir::Var& var, const ir::Call& call, CollectiveKind kind) {
    const ir::Expr value = Rewrite(call.args()[0]);
    if (!ir::TupleType::Is(call.ty())) {
      const ir::Expr lowered = collectives_.Of(call, kind, value);
      return lowered.same_as(value) ? Alias(var, value) : void(Bind(var, lowered));
    }
    Credit("LowerDistIR", mesh::CollectiveName(kind), var);
    auto emit = [&](const ir::Expr& part) { return Emit(var.name(), part); };
    Bind(var, ir::MakeTuple(collectives_.OfCombined(call, kind, value, emit)));
  }

  MeshPart part_;
  const std::string& name_;
  const SpmdContext& context_;
  LocalTypes types_;
  LocalCollectives collectives_;
  LocalShardings shardings_;
  std::unordered_set<const ffi::Object*> absent_;
  int virtual_stage_ = 0;            // of the binding of the body that is being written
  std::vector<int> virtual_stages_;  // of those written
};

/*! \brief All of a function. */
MeshPart Whole(const ir::Function& function) {
  MeshPart whole{function, {}, {}, {}};
  whole.params.resize(function.params().size());
  std::iota(whole.params.begin(), whole.params.end(), 0);
  ir::ForEachLeaf(function.body().body().ty(), [&whole](const ir::Type&) {
    whole.results.push_back(static_cast<int>(whole.results.size()));
  });
  return whole;
}

}  // namespace

SpmdProgram MakeSpmdProgram(const ir::Function& function, const std::string& name,
                            const SpmdContext& context) {
  if (context.roots != nullptr)
    return SpmdRewriter(context.index->PartOf(*context.roots), name, context).Run();
  return SpmdRewriter(Whole(function), name, context).Run();
}

}  // namespace distir::lower
