// LowerCCL: local collectives become destination-passing calls of the runtime's builtins. Their
// groups are listed in the module's attribute distir.partitions: "[[[0,1],[2,3]],[[0,2],[1,3]]]".

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/json_writer.h"
#include "dialect/operators/collective_note.h"
#include "dialect/operators/collective_record.h"
#include "dialect/operators/fused_norm.h"
#include "ir/build.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "lower/passes.h"
#include "lower/signature.h"

namespace distir::lower {

namespace ffi = tvm::ffi;

using abi::JsonArray;
using abi::JsonIntegers;

namespace {

/*! \brief Lists of groups as JSON, each written once: collectives share them. */
class GroupTexts {
 public:
  using Groups = ffi::Array<ffi::Array<int64_t>>;

  /*! \param attribute The groups.
   * \param communicates True if members of a group send to each other. */
  const ir::Expr& Of(const ffi::Any& attribute, bool communicates) {
    Entry& entry = entries_[attribute.as<ffi::ArrayObj>()];
    if (!entry.expr.defined()) {
      std::vector<std::string> items;
      for (const ffi::Array<int64_t>& group : attribute.cast<Groups>())
        items.push_back(JsonIntegers(group));
      entry = {attribute, JsonArray(items), ir::Expr(), false};
      entry.expr = ir::MakeString(entry.text);
    }
    if (communicates && !entry.communicates) {
      entry.communicates = true;
      partitions_.insert(entry.text);
    }
    return entry.expr;
  }

  /*! \brief All groups that communicate. */
  std::string Partitions() const { return JsonArray({partitions_.begin(), partitions_.end()}); }

 private:
  struct Entry {
    ffi::Any attribute;  // keeps the key alive
    std::string text;
    ir::Expr expr;
    bool communicates = false;
  };
  std::unordered_map<const ffi::Object*, Entry> entries_;
  std::set<std::string> partitions_;
};

class CollectiveLowering : public ir::FunctionRewriter {
 public:
  explicit CollectiveLowering(GroupTexts* groups) : groups_(*groups) {}

  /*! \brief True if the function has a collective. */
  static bool Applies(const ir::Function& function) {
    bool applies = false;
    ir::VisitBindings(function.body(), [&applies](const ir::Binding& binding) {
      ir::Call call = ir::BoundCall(binding);
      applies = applies || (call.defined() && IsCollective(call));
    });
    return applies;
  }

 private:
  bool KeepsUnchanged() const override { return true; }

  static bool IsCollective(const ir::Call& call) {
    return dialect::RecordOnTensors(call.op()) != nullptr;
  }

  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    auto call = ir::Call::Cast(value);
    if (!call.defined() || !IsCollective(call))
      return FunctionRewriter::RewriteVarBinding(var, value);
    const abi::CollectiveRecord& record = *dialect::RecordOnTensors(call.op());
    ffi::Array<ir::Expr> args = RewriteAll(call.args());
    AddString(call, "plan", &args);
    // Reading all groups of each call would take time.
    if (const ffi::Any groups = ir::GetAttr(call.attrs(), "groups");
        groups.as<ffi::ArrayObj>() != nullptr) {
      // A slice needs to know its place in the group only.
      args.push_back(groups_.Of(groups, record.sends != abi::Sends::kNothing));
    }
    for (const char* key : {"dim", "split_dim", "concat_dim", "choices"}) AddInt(call, key, &args);
    AddString(call, "reduction", &args);
    if (dialect::IsLocalFusedNorm(call.op()))
      args.push_back(ir::MakeFloat(dialect::EpsilonOf(call)));
    ir::Count(record.builtin);
    const ir::Expr builtin = dialect::WithNote(ir::MakeExternFunc(abi::Builtin(record.collective)),
                                               dialect::NoteOf(call));
    if (!record.has_result) {
      Bind(var, ir::MakeCall(call.ty(), builtin, args, ir::Node(), {call.ty()}));
    } else {
      Bind(var, ir::MakeOpCall(call.ty(), "relax.call_dps_packed", {builtin, ir::MakeTuple(args)},
                               {}, {call.ty()}));
    }
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

  GroupTexts& groups_;
};

}  // namespace

ir::IRModule LowerCCL(const ir::IRModule& mod) {
  GroupTexts groups;
  ir::IRModule lowered = ir::RewriteFunctions(mod, [&groups](const ir::Function& function) {
    if (!CollectiveLowering::Applies(function)) return ir::Function();
    return CollectiveLowering(&groups).RewriteFunction(function);
  });
  if (lowered.same_as(mod)) return mod;
  ffi::Any listed = ffi::String(groups.Partitions());
  return ir::MakeModule(lowered.functions(), ir::WithAttr(mod.attrs(), kPartitionsAttr, listed),
                        mod.global_infos());
}

}  // namespace distir::lower
