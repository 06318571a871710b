// LowerCCL: local collectives become destination-passing calls of the runtime's builtins. Their
// groups are listed in the module's attribute distir.partitions: "[[[0,1],[2,3]],[[0,2],[1,3]]]".
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/build.h"
#include "ir/pass.h"
#include "ir/rewriter.h"
#include "lower/json_writer.h"
#include "op/collective.h"
#include "op/fused_norm.h"
#include "op/segment_exchange.h"

namespace distir {
namespace lower {

namespace ffi = tvm::ffi;

namespace {

const std::string kRuntime = "distir.runtime.";

// Groups that communicate in a program, for who opens them before it runs.
constexpr const char* kPartitionsAttr = "distir.partitions";

class CollectiveLowering : public ir::FunctionRewriter {
 public:
  /*! \param partitions Gets the groups that communicate, as JSON. */
  explicit CollectiveLowering(std::set<std::string>* partitions) : partitions_(partitions) {}

  /*! \brief Whether the function has a collective. */
  static bool Applies(const ir::Function& function) {
    bool applies = false;
    ir::VisitBindings(function.body(), [&applies](const ir::Binding& binding) {
      ir::Call call = ir::BoundCall(binding);
      applies = applies || (call.defined() && IsCollective(call));
    });
    return applies;
  }

 private:
  static bool IsCollective(const ir::Call& call) {
    return op::LocalCollective(call.op()).has_value() || op::IsLocalFusedNorm(call.op()) ||
           op::IsLocalSegmentExchange(call.op()) || ir::IsOp(call.op(), "relax.ccl.send") ||
           ir::IsOp(call.op(), "relax.ccl.recv");
  }

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    auto call = ir::Call::Cast(value);
    if (!call.defined() || !IsCollective(call))
      return FunctionRewriter::RewriteVarBinding(var, value);
    ffi::Array<ir::Expr> args = RewriteAll(call.args());
    AddString(call, "plan", &args);
    if (std::optional<std::string> groups = GroupsOf(call)) {
      args.push_back(ir::MakeString(*groups));
      // A slice needs to know its place in the group only.
      if (!ir::IsOp(call.op(), "relax.ccl.slice")) partitions_->insert(*groups);
    }
    for (const char* key : {"dim", "split_dim", "concat_dim"}) AddInt(call, key, &args);
    AddString(call, "reduction", &args);
    if (op::IsLocalFusedNorm(call.op())) args.push_back(ir::MakeFloat(op::EpsilonOf(call)));
    ir::Expr builtin = ir::MakeExternFunc(kRuntime + BuiltinOf(call));
    if (ir::IsOp(call.op(), "relax.ccl.send")) {
      Bind(var, ir::MakeCall(call.ty(), builtin, args, ir::Node(), {call.ty()}));
    } else {
      Bind(var, ir::MakeOpCall(call.ty(), "relax.call_dps_packed", {builtin, ir::MakeTuple(args)},
                               {}, {call.ty()}));
    }
  }

  static std::string BuiltinOf(const ir::Call& call) {
    auto kind = op::LocalCollective(call.op());
    // All moves by pieces are the same to the runtime.
    if (kind.has_value() && mesh::HasPieces(*kind)) return "transfer";
    return ir::Op::Cast(call.op()).name().substr(std::string("relax.ccl.").size());
  }

  static void AddString(const ir::Call& call, const char* key, ffi::Array<ir::Expr>* args) {
    if (auto value = ir::GetAttr(call.attrs(), key).as<ffi::String>()) {
      args->push_back(ir::MakeString(static_cast<std::string>(*value)));
    }
  }
  static void AddInt(const ir::Call& call, const char* key, ffi::Array<ir::Expr>* args) {
    if (auto value = ir::GetAttr(call.attrs(), key).as<int64_t>())
      args->push_back(ir::MakeInt(*value));
  }
  static std::optional<std::string> GroupsOf(const ir::Call& call) {
    auto groups = ir::GetAttr(call.attrs(), "groups").as<ffi::Array<ffi::Array<int64_t>>>();
    if (!groups.has_value()) return std::nullopt;
    std::vector<std::string> items;
    for (const ffi::Array<int64_t>& group : *groups) items.push_back(JsonIntegers(group));
    return JsonArray(items);
  }

  std::set<std::string>* partitions_;
};

ir::IRModule LowerCCL(const ir::IRModule& mod) {
  std::set<std::string> partitions;
  ir::IRModule lowered = ir::RewriteFunctions(mod, [&partitions](const ir::Function& function) {
    if (!CollectiveLowering::Applies(function)) return ir::Function();
    return CollectiveLowering(&partitions).RewriteFunction(function);
  });
  if (lowered.same_as(mod)) return mod;
  ffi::Any listed = ffi::String(JsonArray({partitions.begin(), partitions.end()}));
  return ir::MakeModule(lowered.functions(), ir::WithAttr(mod.attrs(), kPartitionsAttr, listed),
                        mod.global_infos());
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def("distir.transform.LowerCCL",
                                   [] { return ir::MakeModulePass("LowerCCL", LowerCCL); });
}

}  // namespace

}  // namespace lower
}  // namespace distir
