// ShareResults: results of all-reduces and all-gathers that nobody writes to become tensors that
// the workers of a group may share.
//
//     lv = R.call_dps_packed("distir.runtime.all_gather", (x, R.str("[[0,1]]"), ..), ..)
//     ->
//     lv = R.call_packed("distir.runtime.shared_all_gather", x, R.str("[[0,1]]"), ..)
//
// All members of a group have the same result. Workers that are threads then have it once: it is
// written once, and read from the same cache. A result that leaves the function, or that anything
// but a kernel or a destination-passing call sees, stays the worker's own, since it might be
// written to there.
//
// Runs on functions without dataflow blocks, between RewriteDataflowReshape, behind which views are
// R.reshape, and CallTIRRewrite, behind which calls write to their arguments.

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "abi/collective.h"
#include "dialect/operators/collective_note.h"
#include "ir/build.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "target/cpu/collective_memory.h"
#include "target/cpu/passes.h"

namespace distir::target {

namespace ffi = tvm::ffi;

namespace {

/*! \brief A collective whose result is equal on all members. */
std::optional<abi::Collective> EqualResultOf(const ir::Expr& value) {
  ir::Call call = ir::Call::Cast(value);
  if (!call.defined() || !ir::IsOp(call.op(), "relax.call_dps_packed")) return std::nullopt;
  ir::ExternFunc function = ir::ExternFunc::Cast(call.args()[0]);
  if (!function.defined()) return std::nullopt;
  for (abi::Collective each : {abi::Collective::kAllReduce, abi::Collective::kAllGather})
    if (function.name() == abi::Builtin(each)) return each;
  return std::nullopt;
}

/*! \brief Set of results that may be shared. */
class Sharing {
 public:
  explicit Sharing(const ir::Function& function) { VisitSeq(function.body()); }

  bool Contains(const ir::Var& var) const { return results_.count(var.get()) > 0; }
  bool any() const { return !results_.empty(); }

 private:
  void VisitSeq(const ir::SeqExpr& seq) {
    for (const ir::BindingBlock& block : seq.blocks()) {
      for (const ir::Binding& binding : block.bindings()) {
        ir::VarBinding bound = ir::VarBinding::Cast(binding);
        if (bound.defined()) {
          VisitValue(bound.var(), bound.value());
        } else {
          Keep(ir::MatchCast::Cast(binding).value());
        }
      }
    }
    Keep(seq.body());
  }

  void VisitValue(const ir::Var& var, const ir::Expr& value) {
    if (auto branches = ir::If::Cast(value); branches.defined()) {
      VisitSeq(branches.true_branch());
      VisitSeq(branches.false_branch());
      return;
    }
    ir::Call call = ir::Call::Cast(value);
    if (call.defined() && ir::IsOp(call.op(), "relax.reshape")) {
      ir::Var source = ir::Var::Cast(call.args()[0]);
      if (source.defined()) views_[var.get()] = RootOf(source);
      return;
    }
    const bool only_reads = call.defined() && (ir::IsOp(call.op(), "relax.call_tir") ||
                                               ir::IsOp(call.op(), "relax.call_dps_packed"));
    if (!only_reads) Keep(value);
    if (EqualResultOf(value).has_value() && IsLargeTensor(value.ty())) results_.insert(var.get());
  }

  /*! \brief Keeps the variables that these expressions use as the worker's own. */
  void Keep(const ir::Expr& expr) {
    ir::VisitUses(expr, [this](const ir::Var& var) { results_.erase(RootOf(var)); });
  }

  const ffi::Object* RootOf(const ir::Var& var) const {
    auto found = views_.find(var.get());
    return found == views_.end() ? var.get() : found->second;
  }

  std::unordered_set<const ffi::Object*> results_;
  std::unordered_map<const ffi::Object*, const ffi::Object*> views_;
};

class Sharer : public ir::FunctionRewriter {
 public:
  explicit Sharer(const Sharing& sharing) : sharing_(sharing) {}

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (!sharing_.Contains(var)) return FunctionRewriter::RewriteVarBinding(var, value);
    ir::Count("results");
    ir::Call call = ir::Call::Cast(value);
    ffi::Array<ir::Expr> arguments = ir::Tuple::Cast(Rewrite(call.args()[1])).fields();
    const ir::Expr builtin = dialect::WithNote(
        ir::MakeExternFunc(abi::SharedBuiltin(*EqualResultOf(value))), dialect::NoteOf(call));
    Bind(var, ir::MakeCall(var.ty(), builtin, arguments, ir::Node(), {var.ty()}));
  }

  const Sharing& sharing_;
};

}  // namespace

ir::IRModule ShareResults(const ir::IRModule& mod) {
  return ir::RewriteFunctions(mod, [](const ir::Function& function) {
    Sharing sharing(function);
    return sharing.any() ? Sharer(sharing).RewriteFunction(function) : ir::Function();
  });
}

}  // namespace distir::target
