// Checks the postconditions of each phase, and lists all violations.
#include "verify/violations.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "decompose/pass.h"
#include "dialect/mesh_table.h"
#include "dialect/operators/annotation.h"
#include "dialect/operators/collective.h"
#include "dialect/operators/copies_reduction.h"
#include "dialect/operators/local_view.h"
#include "dialect/operators/manual.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "lower/local/local_view.h"
#include "padding/extents.h"
#include "redistribute/partial.h"
#include "support/functions.h"

namespace distir::verify {

namespace ffi = tvm::ffi;

namespace {

bool HasTensor(const ir::Type& type) {
  return ir::AnyLeaf(type, [](const ir::Type& leaf) {
    return ir::TensorType::Is(leaf) || ir::DTensorType::Is(leaf);
  });
}

bool HasPlainTensor(const ir::Type& type) {
  return ir::AnyLeaf(type, [](const ir::Type& leaf) { return ir::TensorType::Is(leaf); });
}

bool MovesTensors(const ir::Call& call) {
  return ir::IsOp(call.op(), "relax.dist.redistribute") ||
         dialect::DTensorCollective(call.op()) == mesh::CollectiveKind::kTransfer;
}

/*! \brief Checks the functions of one module that have DTensors; see violations.h. */
class DistributedVerifier {
 public:
  DistributedVerifier(const ir::IRModule& mod, bool is_legalized)
      : mod_(mod),
        is_legalized_(is_legalized),
        meshes_(dialect::TableWithRegions(mod)),
        padded_(&meshes_),
        kernels_(mod.functions()),
        decisions_(&meshes_, &kernels_) {
    for (const auto& [name, infos] : mod.global_infos()) {
      for (const ir::GlobalInfo& info : infos) infos_.insert(info.get());
    }
  }

  std::vector<std::string> Run() {
    for (const auto& [gv, base] : ir::OrderedFunctions(mod_)) {
      ir::Function function = ir::Function::Cast(base);
      if (!function.defined()) continue;
      function_ = gv.name();
      takes_part_ = dialect::IsDistributed(function);
      alike_.clear();
      for (const ir::Var& param : function.params()) CheckVar(param, param.ty());
      ir::VisitBindings(function.body(), [this](const ir::Binding& b) { CheckBinding(b); });
      partial_.clear();
      if (takes_part_ && is_legalized_) CheckReductions(function.body());
    }
    return std::move(violations_);
  }

 private:
  void Report(const ir::Var& var, const std::string& what) {
    violations_.push_back("`" + var.name() + "` in `" + function_ + "`: " + what);
  }

  void CheckVar(const ir::Var& var, const ir::Type& type) {
    if (!takes_part_) return;
    ir::ForEachLeaf(type, [&](const ir::Type& leaf) {
      if (ir::TensorType::Is(leaf)) Report(var, "is a Tensor, not a DTensor: " + ir::Print(leaf));
      auto dtensor = ir::DTensorType::Cast(leaf);
      if (!dtensor.defined()) return;
      CheckMesh(var, dtensor.device_mesh());
      if (is_legalized_) CheckDivides(var, dtensor);
    });
  }

  void CheckDivides(const ir::Var& var, const ir::DTensorType& type) {
    if (!meshes_.IsUneven(type)) return;
    for (int dim : padded_.UnevenDims(type)) {
      // Symbolic ones that are not padded are checked at run time.
      if (ir::StaticDim(ir::ShapeOf(type.tensor_ty())[dim]) < 0) continue;
      Report(var, "dimension " + std::to_string(dim) +
                      " does not divide into its shards: " + ir::Print(type));
    }
  }

  void CheckMesh(const ir::Var& var, const ir::DeviceMesh& device_mesh) {
    if (infos_.count(device_mesh.get()) == 0)
      Report(var, "its device mesh is no entry of the module's global infos");
  }

  void CheckBinding(const ir::Binding& binding) {
    const ir::Var& var = binding.var();
    auto var_binding = ir::VarBinding::Cast(binding);
    if (!var_binding.defined()) return CheckVar(var, var.ty());
    const ir::Expr& value = var_binding.value();
    if (IsMadeAlike(value)) {
      alike_.insert(var.get());
    } else {
      CheckVar(var, var.ty());
    }
    if (auto call = ir::Call::Cast(value); call.defined()) {
      if (auto callee = ir::GlobalVar::Cast(call.op()); callee.defined()) {
        CheckFunctionCall(var, call, callee);
      } else if (takes_part_) {
        CheckOperatorCall(var, call);
      }
    } else if (auto branch = ir::If::Cast(value); branch.defined() && takes_part_) {
      if (!dialect::SamePlacements(branch.true_branch().body().ty(),
                                   branch.false_branch().body().ty()))
        Report(var, "its branches are placed differently");
    }
  }

  /*! \brief True if every device makes the same Tensor. */
  bool IsMadeAlike(const ir::Expr& value) const {
    if (ir::Var::Is(value)) return alike_.count(value.get()) > 0;
    auto call = ir::Call::Cast(value);
    if (!call.defined() || ir::GlobalVar::Is(call.op())) return false;
    for (const ir::Expr& arg : call.args()) {
      if (HasTensor(arg.ty())) return false;
    }
    return HasPlainTensor(value.ty());
  }

  void CheckFunctionCall(const ir::Var& var, const ir::Call& call, const ir::GlobalVar& callee) {
    auto base = mod_.functions().find(callee);
    if (base == mod_.functions().end()) return;
    ir::Function function = ir::Function::Cast((*base).second);
    if (!function.defined()) return;
    if (call.args().size() != function.params().size())
      return Report(var, "calls `" + callee.name() + "` with another number of arguments");
    for (size_t i = 0; i < call.args().size(); ++i) {
      if (!dialect::SamePlacements(call.args()[i].ty(), function.params()[i].ty())) {
        Report(var,
               "argument " + std::to_string(i) + " of `" + callee.name() +
                   "` is placed differently from the parameter: " + ir::Print(call.args()[i].ty()) +
                   " and " + ir::Print(function.params()[i].ty()));
      }
    }
    if (!dialect::SamePlacements(call.ty(), function.ret_ty()))
      Report(var, "is placed differently from the result of `" + callee.name() + "`");
  }

  void CheckOperatorCall(const ir::Var& var, const ir::Call& call) {
    if (dialect::IsAnnotation(call) || dialect::IsBarrier(call.op()) ||
        dialect::IsShardingGroup(call.op()))
      return Report(var,
                    ir::CalleeName(call).substr(std::string("relax.dist.").size()) + " is left");
    if (dialect::CrossesRegion(call)) return CheckCrossing(var, call);
    if (dialect::ManualCollective(call.op()).has_value()) CheckManualCollective(var, call);
    if (MovesTensors(call)) {
      CheckMesh(var, dialect::TargetMesh(call));
      if (is_legalized_ && ir::IsOp(call.op(), "relax.dist.redistribute"))
        CheckRedistribute(var, call);
      return;
    }
    if (is_legalized_ && dialect::IsCopiesReduction(call.op()))
      Report(var, "R.ccl.allreduce is left");
    if (is_legalized_ && dialect::IsLocalView(call.op())) {
      const std::string misfit = lower::MisfitOfLocalView(call, mod_.functions(), &meshes_);
      if (!misfit.empty()) Report(var, misfit);
    }
    if (is_legalized_ && decompose::IsSharded(call, &decisions_))
      Report(var, "is sharded along a dimension that its operator needs replicated");
    const size_t known = violations_.size();
    int root = RootOf(var.ty());
    for (const ir::Expr& arg : call.args()) {
      ir::ForEachLeaf(arg.ty(), [&](const ir::Type& leaf) {
        if (ir::TensorType::Is(leaf)) return Report(var, "takes a Tensor: " + ir::Print(leaf));
        int of_arg = RootOf(leaf);
        if (of_arg < 0) return;
        if (root < 0) root = of_arg;
        if (of_arg != root) Report(var, "takes arguments on different device sets");
      });
    }
    if (violations_.size() == known) CheckDecision(var, call);
  }

  /*! \brief Type inference says what may cross the border of a region. */
  void CheckCrossing(const ir::Var& var, const ir::Call& call) {
    try {
      dialect::InferCrossing(call);
    } catch (const ffi::Error& error) {
      Report(var, error.message());
    }
  }

  void CheckManualCollective(const ir::Var& var, const ir::Call& call) {
    try {
      dialect::RequireInRegion(call, RootOf(call.args()[0].ty()), "it", &meshes_);
    } catch (const ffi::Error& error) {
      Report(var, error.message());
    }
  }

  /*! \brief True if two types shard their tensors alike, whatever view of the mesh they name. */
  bool SameShardings(const ir::Type& a, const ir::Type& b) {
    std::vector<mesh::Sharding> shardings[2];
    std::vector<int> roots[2];
    for (int i : {0, 1}) {
      ir::ForEachLeaf(i == 0 ? a : b, [&, i](const ir::Type& leaf) {
        auto dtensor = ir::DTensorType::Cast(leaf);
        if (!dtensor.defined()) return;
        roots[i].push_back(meshes_.RootOf(dtensor));
        shardings[i].push_back(mesh::Canonical(meshes_.ShardingOf(dtensor)));
      });
    }
    return roots[0] == roots[1] && shardings[0] == shardings[1];
  }

  /*! \brief Compares the type of a call's value with what its operands decide, derived anew. */
  void CheckDecision(const ir::Var& var, const ir::Call& call) {
    if (!ir::Op::Is(call.op())) return;
    const auto decision = decisions_.Of(call);
    if (decision && !SameShardings(decision->call.type, call.ty()))
      Report(var, "is typed as " + ir::Print(call.ty()) + ", but its operands give " +
                      ir::Print(decision->call.type));
  }

  /*! \brief The root mesh of the first DTensor in a type, or -1. */
  int RootOf(const ir::Type& type) {
    int root = -1;
    ir::ForEachLeaf(type, [&](const ir::Type& leaf) {
      auto dtensor = ir::DTensorType::Cast(leaf);
      if (dtensor.defined() && root < 0) root = meshes_.RootOf(dtensor.device_mesh());
    });
    return root;
  }

  void CheckRedistribute(const ir::Var& var, const ir::Call& call) {
    if (ir::DTensorType::Is(call.args()[0].ty())) return Report(var, "redistribute is left");
    std::vector<int> dims = dialect::PlacementDims(dialect::TargetPlacement(call));
    if (std::any_of(dims.begin(), dims.end(), [](int dim) { return dim >= 0; }))
      Report(var, "redistribute of a Tensor leads to a sharded DTensor");
  }

  // ---- reductions

  void CheckReductions(const ir::SeqExpr& seq) {
    for (const ir::BindingBlock& block : seq.blocks()) {
      for (const ir::Binding& binding : block.bindings()) {
        auto var_binding = ir::VarBinding::Cast(binding);
        if (!var_binding.defined()) {
          CheckUse(ir::MatchCast::Cast(binding).value());
        } else if (auto branch = ir::If::Cast(var_binding.value()); branch.defined()) {
          CheckUse(branch.cond());
          CheckReductions(branch.true_branch());
          CheckReductions(branch.false_branch());
        } else {
          FollowPartial(binding.var(), var_binding.value());
        }
      }
    }
    CheckUse(seq.body());
  }

  struct Partial {
    ir::Var var;
    redistribute::PartialAxes axes;
  };

  const redistribute::PartialAxes* PartialOf(const ir::Expr& expr) const {
    if (auto item = ir::TupleGetItem::Cast(expr); item.defined()) return PartialOf(item.tuple());
    auto found = partial_.find(expr.get());
    return found == partial_.end() ? nullptr : &found->second.axes;
  }

  void FollowPartial(const ir::Var& var, const ir::Expr& value) {
    auto call = ir::Call::Cast(value);
    std::optional<redistribute::PartialAxes> axes;
    if (!call.defined()) {
      const redistribute::PartialAxes* of_value = PartialOf(value);
      if (of_value == nullptr) return CheckUse(value);
      axes = *of_value;
    } else {
      auto of_expr = [this](const ir::Expr& expr) { return PartialOf(expr); };
      std::optional<redistribute::PartialValue> own;
      if (ir::Op::Is(call.op())) own = redistribute::PartialResult(call, &decisions_);
      auto flow = redistribute::FlowThrough(call, of_expr, own, &meshes_);
      if (!flow.is_allowed) {
        for (const ir::Expr& arg : call.args()) CheckUse(arg);
      }
      axes = flow.result;
    }
    if (axes) partial_.emplace(var.get(), Partial{var, *axes});
  }

  void CheckUse(const ir::Expr& expr) {
    if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) CheckUse(field);
    } else if (auto item = ir::TupleGetItem::Cast(expr); item.defined()) {
      CheckUse(item.tuple());
    } else if (auto found = partial_.find(expr.get()); found != partial_.end()) {
      Report(found->second.var, "is partial and used without a reduction");
    }
  }

  const ir::IRModule& mod_;
  const bool is_legalized_;
  dialect::MeshTable meshes_;
  padding::PaddedTypes padded_;
  rules::KernelTable kernels_;
  rules::Decisions decisions_;
  std::unordered_set<const ffi::Object*> infos_;
  std::vector<std::string> violations_;
  // Of the function being checked:
  std::string function_;
  bool takes_part_ = false;
  std::unordered_set<const ffi::Object*> alike_;  // Tensors that every device makes alike
  std::unordered_map<const ffi::Object*, Partial> partial_;
};

}  // namespace

std::vector<std::string> VerifyPropagated(const ir::IRModule& mod) {
  return DistributedVerifier(mod, false).Run();
}

std::vector<std::string> VerifyLegalized(const ir::IRModule& mod) {
  return DistributedVerifier(mod, true).Run();
}

std::vector<std::string> VerifyLowered(const ir::IRModule& mod) {
  std::vector<std::string> violations;
  for (const auto& [gv, base] : ir::OrderedFunctions(mod)) {
    ir::Function function = ir::Function::Cast(base);
    if (!function.defined()) continue;
    std::string where = "` in `" + gv.name() + "`: ";
    auto check_type = [&](const ir::Var& var) {
      if (dialect::HasDTensor(var.ty()))
        violations.push_back("`" + var.name() + where + "is a DTensor: " + ir::Print(var.ty()));
    };
    for (const ir::Var& param : function.params()) check_type(param);
    ir::VisitBindings(function.body(), [&](const ir::Binding& binding) {
      check_type(binding.var());
      auto var_binding = ir::VarBinding::Cast(binding);
      auto call = ir::Call::Cast(var_binding.defined() ? var_binding.value() : ir::Expr());
      if (!call.defined() || !ir::Op::Is(call.op())) return;
      std::string op = ir::Op::Cast(call.op()).name();
      if (op.rfind("relax.dist.", 0) == 0)
        violations.push_back("`" + binding.var().name() + where + op + " is left");
    });
  }
  return violations;
}

namespace {

template <std::vector<std::string> (*verify)(const ir::IRModule&)>
ffi::Array<ffi::String> ToArray(ir::IRModule mod) {
  ffi::Array<ffi::String> violations;
  for (const std::string& violation : verify(mod)) violations.push_back(violation);
  return violations;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.verify.Propagated", ToArray<VerifyPropagated>)
      .def("distir.verify.Legalized", ToArray<VerifyLegalized>)
      .def("distir.verify.Lowered", ToArray<VerifyLowered>);
}

}  // namespace

}  // namespace distir::verify
