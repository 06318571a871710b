// AssignStages: a function's bindings in contiguous stages, each on a mesh of its own.
#include <tvm/ffi/error.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cost/cluster.h"
#include "dialect/mesh_table.h"
#include "dialect/operators/manual.h"
#include "ir/build.h"
#include "ir/module/call_graph.h"
#include "ir/rewriter.h"
#include "ir/tvm/pass.h"
#include "lower/stages/virtual_stages.h"
#include "propagation/merged_dims.h"
#include "propagation/pass.h"
#include "stages/stage_meshes.h"
#include "stages/stage_plan.h"
#include "stages/work.h"
#include "support/error.h"
#include "support/functions.h"
#include "support/in_order.h"

namespace distir::stages {

namespace {

using dialect::IsAnnotation;

void RequireNoRegions(const ir::IRModule& mod) {
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    auto function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    ir::VisitBindings(function.body(), [&name = gv](const ir::Binding& binding) {
      DISTIR_REQUIRE(!dialect::CrossesRegion(ir::BoundCall(binding)), ValueError)
          << "`" << binding.var().name() << "` in `" << name.name()
          << "` belongs to a manual region, which AssignStages cannot put on the mesh of a stage; "
          << "annotate the stages by hand, with regions on their meshes";
    });
  }
}

bool HasAnnotations(const ir::Function& function) {
  bool found = false;
  ir::VisitBindings(function.body(), [&found](const ir::Binding& binding) {
    found = found || IsAnnotation(ir::BoundCall(binding));
  });
  return found;
}

/*! \brief Puts a function's annotations on the mesh of a stage. */
class AnnotationMover : public ir::FunctionRewriter {
 public:
  using CalleeAt = std::function<ir::Expr(const ir::Expr&)>;

  AnnotationMover(StageMeshes* meshes, int stage, CalleeAt callee_at)
      : meshes_(*meshes), stage_(stage), callee_at_(std::move(callee_at)) {}

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    ir::Call call = ir::Call::Cast(value);
    if (IsAnnotation(call)) {
      Bind(var, meshes_.AnnotateAs(call, Rewrite(call.args()[0]), stage_, var.name()));
    } else if (call.defined() && ir::GlobalVar::Is(call.op())) {
      Bind(var, ir::MakeCall(call.ty(), callee_at_(call.op()), RewriteAll(call.args()),
                             call.attrs(), call.ty_args(), call.span()));
    } else {
      FunctionRewriter::RewriteVarBinding(var, value);
    }
  }

 private:
  StageMeshes& meshes_;
  const int stage_;
  const CalleeAt callee_at_;
};

/*! \brief The functions that the assigned one calls, as each stage calls them. */
class Callees {
 public:
  Callees(const ir::IRModule& mod, const ir::CallGraph& calls, StageMeshes* meshes)
      : functions_(mod.functions()), calls_(calls), meshes_(*meshes) {
    for (const auto& [gv, base] : ir::OrderedFunctions(mod)) names_[gv.name()] = 0;
    std::vector<bool> has_annotations(calls.size());
    for (size_t i = 0; i < calls.size(); ++i)
      has_annotations[i] = HasAnnotations(FunctionOf(calls[i].name));
    states_shardings_ = calls.WithCallers(std::move(has_annotations));
  }

  /*! \brief Callee of a stage: a copy if the function states shardings, on stages after the first.
   * */
  ir::Expr At(const ir::Expr& callee, int stage) {
    ir::GlobalVar gv = ir::GlobalVar::Cast(callee);
    ir::Function function = FunctionOf(gv);
    if (!function.defined() || !StatesShardings(gv)) return callee;
    auto found = versions_.find({gv.get(), stage});
    if (found != versions_.end()) return found->second;
    ir::GlobalVar version = gv;
    if (stage > 0) {
      std::string name = gv.name() + "_stage" + std::to_string(stage);
      while (!names_.emplace(name, 0).second) name += "_";
      version = ir::MakeGlobalVar(name);
      ir::SetType(version, gv.ty());
    }
    versions_[{gv.get(), stage}] = version;
    AnnotationMover mover(&meshes_, stage, [&](const ir::Expr& inner) { return At(inner, stage); });
    written_.emplace_back(version, mover.RewriteFunction(function));
    return version;
  }

  /*! \brief True if a function, or one that it calls, states shardings. */
  bool StatesShardings(const ir::GlobalVar& gv) const {
    const std::optional<size_t> function = calls_.Find(gv);
    return function.has_value() && states_shardings_[*function];
  }

  /*! \brief The functions written since the last call. */
  std::vector<std::pair<ir::GlobalVar, ir::Function>> TakeWritten() { return std::move(written_); }

 private:
  ir::Function FunctionOf(const ir::GlobalVar& gv) const {
    auto found = functions_.find(gv);
    return found == functions_.end() ? ir::Function() : ir::Function::Cast((*found).second);
  }

  const ir::FunctionMap functions_;
  const ir::CallGraph& calls_;
  StageMeshes& meshes_;
  std::map<std::string, int> names_;
  std::map<std::pair<const ffi::Object*, int>, ir::GlobalVar> versions_;
  std::vector<bool> states_shardings_;  // by number in calls_
  std::vector<std::pair<ir::GlobalVar, ir::Function>> written_;
};

/*! \brief Writes the function with the mesh of its stage on everything that a stage is given. */
class StageWriter : public ir::FunctionRewriter {
 public:
  StageWriter(const ir::Function& function, const CarriedBindings& carried, const StagePlan& plan,
              const propagation::VarShardings& shardings, StageMeshes* meshes, Callees* callees)
      : function_(function),
        carried_(carried),
        plan_(plan),
        shardings_(shardings),
        meshes_(*meshes),
        callees_(*callees) {}

  ir::Function Run() {
    ir::Function written = RewriteFunction(function_);
    ffi::Array<ir::Var> params;
    for (const ir::Var& param : written.params()) {
      params.push_back(param);
      for (const ir::Var& copy : copies_[param.get()]) params.push_back(copy);
    }
    // The stated result type may know more than the body's.
    return ir::MakeFunction(params, written.body(), function_.ret_ty(), written.is_pure(),
                            written.attrs());
  }

 protected:
  // A value is moved once for each stage, whatever block asks for it first.
  bool KeepsDataflow() const override { return false; }

  ir::Expr Rewrite(const ir::Expr& expr) override {
    if (!ir::Var::Is(expr)) return FunctionRewriter::Rewrite(expr);
    return At(ir::Var::Cast(expr), stage_);
  }

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (carried_.Find(var) != nullptr) return;  // written where it is used
    auto assigned = plan_.stage_of.find(var.get());
    if (assigned != plan_.stage_of.end()) stage_ = assigned->second;
    ir::Call call = ir::Call::Cast(value);
    if (IsAnnotation(call)) {
      auto source = ir::Var::Cast(call.args()[0]);
      // Straight to where it is wanted, not first to where the stage would have it.
      ir::Expr moved = source.defined() && IsMade(source) ? FunctionRewriter::Rewrite(source)
                                                          : Rewrite(call.args()[0]);
      Bind(var, meshes_.AnnotateAs(call, moved, stage_, var.name()));
      return;
    }
    if (call.defined() && ir::GlobalVar::Is(call.op())) {
      Bind(var, ir::MakeCall(call.ty(), callees_.At(call.op(), stage_), RewriteAll(call.args()),
                             call.attrs(), call.ty_args(), call.span()));
      return;
    }
    // Values that a branch uses from outside are moved before it: both branches may use them.
    if (ir::If::Is(value)) ir::VisitUses(value, [this](const ir::Var& used) { Rewrite(used); });
    FunctionRewriter::RewriteVarBinding(var, value);
  }

  void RewriteMatchCast(const ir::Var& var, const ir::MatchCast& cast) override {
    auto assigned = plan_.stage_of.find(var.get());
    if (assigned != plan_.stage_of.end()) stage_ = assigned->second;
    FunctionRewriter::RewriteMatchCast(var, cast);
  }

  ir::Expr RewriteSeqValue(const ir::Expr& value, const ir::Var& branch_of) override {
    if (branch_of.defined()) return Rewrite(value);
    // Results stay where they are made.
    stage_ = kWhereItIs;
    return Rewrite(value);
  }

 private:
  static constexpr int kWhereItIs = -1;

  bool IsOnMesh(int stage, int other) const {
    return meshes_.FirstOnMeshOf(stage) == meshes_.FirstOnMeshOf(other);
  }
  bool IsMade(const ir::Var& var) const { return plan_.stage_of.count(var.get()) > 0; }

  /*! \brief A variable of the original function for a stage. */
  ir::Expr At(const ir::Var& var, int stage) {
    const bool is_carried = carried_.IsParam(var) || carried_.Find(var) != nullptr;
    if (!is_carried) {
      ir::Expr here = FunctionRewriter::Rewrite(var);
      if (!IsMade(var) || stage == kWhereItIs || IsOnMesh(plan_.stage_of.at(var.get()), stage))
        return here;
      return Remembered(var, stage, [&] { return Moved(here, var, stage); });
    }
    if (stage == kWhereItIs) stage = Owner(var, 0);
    return Remembered(var, stage, [&] { return CarriedAt(var, stage); });
  }

  template <typename Make>
  ir::Expr Remembered(const ir::Var& var, int stage, Make make) {
    auto key = std::make_pair(static_cast<const ffi::Object*>(var.get()), stage);
    auto found = versions_.find(key);
    if (found == versions_.end()) found = versions_.emplace(key, make()).first;
    return found->second;
  }

  /*! \brief The first stage that asked for a variable. */
  int Owner(const ir::Var& var, int stage) {
    return owners_.emplace(var.get(), stage).first->second;
  }

  ir::Expr CarriedAt(const ir::Var& var, int stage) {
    const Carried* carried = carried_.Find(var);
    if (carried != nullptr && !carried->param.defined()) {
      const int outer = std::exchange(stage_, stage);
      ir::Expr value = FunctionRewriter::Rewrite(carried->value);
      stage_ = outer;
      return Emit(var.name(), value);
    }
    const ir::Var& param = carried == nullptr ? var : carried->param;
    const int owner = Owner(var, stage);
    if (owner != stage && !carried_.IsTensorWeight(param)) {
      const ir::Expr there = At(var, owner);
      return IsOnMesh(owner, stage) ? there : Moved(there, var, stage);
    }
    ir::Call call = carried == nullptr ? ir::Call() : ir::Call::Cast(carried->value);
    if (IsAnnotation(call)) {
      ir::Expr source = Unmoved(call.args()[0], stage);
      return Emit(var.name(), meshes_.AnnotateAs(call, source, stage, var.name()));
    }
    ir::Expr value = Unmoved(var, stage);
    // The fields of a tuple may belong to different stages.
    return ir::TensorType::Is(var.ty()) ? Moved(value, var, stage) : value;
  }

  /*! \brief A parameter, or what is carried of it, as a stage has it before its mesh is stated. */
  ir::Expr Unmoved(const ir::Expr& expr, int stage) {
    ir::Var var = ir::Var::Cast(expr);
    if (carried_.IsParam(var)) return carried_.IsTensorWeight(var) ? CopyFor(var, stage) : var;
    const ir::Expr& value = carried_.Find(var)->value;
    if (auto item = ir::TupleGetItem::Cast(value); item.defined())
      return Emit(var.name(), ir::MakeTupleGetItem(Unmoved(item.tuple(), stage), item.index()));
    if (ir::Var::Is(value)) return Unmoved(value, stage);
    return At(var, stage);
  }

  /*! \brief A weight as a parameter of a stage: of the first that uses it, and others on its mesh,
   * the parameter itself. */
  ir::Var CopyFor(const ir::Var& weight, int stage) {
    if (IsOnMesh(Owner(weight, stage), stage)) return weight;
    auto [copy, is_new] = copy_of_.try_emplace({weight.get(), meshes_.FirstOnMeshOf(stage)});
    if (is_new) {
      copy->second = ir::MakeVar(weight.name(), weight.ty(), false);
      copies_[weight.get()].push_back(copy->second);
    }
    return copy->second;
  }

  /*! \brief A value with the mesh of a stage on its tensors. */
  ir::Expr Moved(const ir::Expr& value, const ir::Var& var, int stage) {
    static const std::vector<Dims> kUnknown;
    auto known = shardings_.find(var.get());
    InOrder dims(known == shardings_.end() ? kUnknown : known->second);
    return Moved(value, var, stage, &dims);
  }

  /*! \param dims Of the tensors in the value. */
  ir::Expr Moved(const ir::Expr& value, const ir::Var& var, int stage,
                 InOrder<std::vector<Dims>>* dims) {
    const ir::Type& type = value.ty();
    if (ir::TensorType::Is(type)) {
      return Emit(var.name(), meshes_.Annotate(value, stage, dims->done() ? Dims() : dims->Take()));
    }
    if (auto tuple = ir::TupleType::Cast(type); tuple.defined()) {
      ffi::Array<ir::Expr> fields;
      for (size_t i = 0; i < tuple.fields().size(); ++i) {
        ir::Expr field = Emit(var.name(), ir::MakeTupleGetItem(value, static_cast<int>(i)));
        fields.push_back(Moved(field, var, stage, dims));
      }
      return Emit(var.name(), ir::MakeTuple(fields));
    }
    DISTIR_REQUIRE(ir::ShapeType::Is(type) || ir::PrimType::Is(type), ValueError)
        << "`" << var.name()
        << "` is used in two stages, and what is no tensor cannot move: " << ir::Print(type);
    return value;
  }

  const ir::Function& function_;
  const CarriedBindings& carried_;
  const StagePlan& plan_;
  const propagation::VarShardings& shardings_;
  StageMeshes& meshes_;
  Callees& callees_;
  int stage_ = 0;
  std::map<std::pair<const ffi::Object*, int>, ir::Expr> versions_;  // by variable and stage
  std::map<const ffi::Object*, int> owners_;
  std::map<std::pair<const ffi::Object*, int>, ir::Var> copy_of_;  // by first stage of a mesh
  std::map<const ffi::Object*, std::vector<ir::Var>> copies_;      // of weights, in order
};

struct Options {
  std::string function;
  ffi::Array<ir::DeviceMesh> meshes;
  dialect::AxisNames names;  // of the axes of each
  ir::DeviceMesh whole;
  int axis;
  dialect::AxisNames names_of_whole;
  DeviceSpeed speed;
  double slack;
  std::vector<std::string> begins;  // see PlanStages
};

/*! \brief The function of a name, which nothing may call. */
ir::GlobalVar FindFunction(const ir::CallGraph& calls, const std::string& name) {
  std::vector<std::string> names;
  ir::GlobalVar found;
  for (size_t i = 0; i < calls.size(); ++i) {
    names.push_back(calls[i].name.name());
    if (names.back() != name) continue;
    found = calls[i].name;
    DISTIR_REQUIRE(calls[i].callers.empty(), ValueError)
        << "`" << name << "` is called by `" << calls[calls[i].callers.front()].name.name()
        << "`; only a function that nothing calls is cut into stages";
  }
  DISTIR_REQUIRE(found.defined(), ValueError)
      << "the module has no Relax function \"" << name << "\"; it has " << support::Listed(names);
  return found;
}

ir::IRModule AssignStages(const ir::IRModule& mod, const Options& options) {
  const ir::CallGraph calls(mod);
  const ir::GlobalVar gv = FindFunction(calls, options.function);
  ir::Function original = ir::Function::Cast(mod.functions().at(gv));
  DISTIR_REQUIRE(!dialect::IsDistributed(original), ValueError)
      << "`" << options.function << "` has DTensors; assign stages before PropagateSharding";
  RequireNoRegions(mod);
  dialect::MeshTable table(mod);
  StageMeshes meshes(options.meshes, options.whole, options.axis, &table);
  for (size_t stage = 0; stage < meshes.size(); ++stage)
    table.Name(meshes.of(static_cast<int>(stage)), options.names);
  if (options.whole.defined()) table.Name(options.whole, options.names_of_whole);

  // All of it on the mesh of the first stage, to see how propagation shards it.
  Callees callees(mod, calls, &meshes);
  ir::FunctionMap functions = mod.functions();
  auto write = [&] {
    for (const auto& [name, function] : callees.TakeWritten()) functions.Set(name, function);
  };
  const bool states_shardings = callees.StatesShardings(gv);
  const ir::Function function =
      propagation::SeparateBatchDims(AnnotationMover(&meshes, 0, [&](const ir::Expr& callee) {
                                       return callees.At(callee, 0);
                                     }).RewriteFunction(original));
  write();
  functions.Set(gv, function);
  const ir::IRModule first = ir::MakeModule(functions, mod.attrs(), table.GlobalInfos());
  propagation::VarShardings shardings;
  if (states_shardings) shardings = propagation::SolvedShardings(first, gv, meshes.of(0));

  CarriedBindings carried(function);
  for (const ir::BindingBlock& block : function.body().blocks()) {
    for (const ir::Binding& binding : block.bindings()) {
      if (auto bound = ir::VarBinding::Cast(binding); bound.defined())
        carried.Add(bound.var(), bound.value());
    }
  }
  WorkEstimate work(first, options.speed);
  const cost::Cluster cluster = cost::ToCluster(ir::GetAttr(mod.attrs(), cost::kClusterAttr));
  const StagePlan plan = PlanStages(options.function, function, carried, shardings, &meshes,
                                    cluster, &work, options.slack, options.begins);
  ir::Function written = StageWriter(function, carried, plan, shardings, &meshes, &callees).Run();
  ir::Node attrs = written.attrs();
  if (meshes.IsInterleaved())
    attrs = ir::WithAttr(attrs, lower::kInterleavedAttr, meshes.SmallestDevices());
  written = ir::MakeFunction(written.params(), written.body(), original.ret_ty(), written.is_pure(),
                             attrs);
  write();
  functions.erase(gv);
  ir::GlobalVar assigned = ir::MakeGlobalVar(gv.name());
  ir::SetType(assigned, written.ty());
  functions.Set(assigned, written);
  return ir::MakeModule(functions, table.ModuleAttrs(mod.attrs()), table.GlobalInfos());
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions().def(
      "distir.transform.AssignStages",
      [](ffi::String function, ffi::Array<ir::DeviceMesh> meshes, dialect::AxisNames names,
         ffi::Optional<ir::DeviceMesh> whole, int axis, dialect::AxisNames names_of_whole,
         double operations, double bytes, double slack, ffi::Array<ffi::String> begins) {
        const Options options{function,
                              meshes,
                              names,
                              whole.value_or(ir::DeviceMesh()),
                              axis,
                              names_of_whole,
                              DeviceSpeed{operations, bytes},
                              slack,
                              {begins.begin(), begins.end()}};
        return ir::MakeModulePass(
            "AssignStages", [options](ir::IRModule mod) { return AssignStages(mod, options); });
      });
}

}  // namespace

}  // namespace distir::stages
