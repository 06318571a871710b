// hoist_gathers: a function that only gathers a parameter, and is called several times with one
// value, takes the gathered value; the caller gathers once.
//
//     def layer(x, w):  # w: "S[0]"               def layer(x, w):  # w: "R"
//         v = R.dist.all_gather(w, mesh[0], "R")      y = R.matmul(x, w)
//         y = R.matmul(x, v)                          return y
//         return y                            ->
//     a = layer(x, weight)                        v = R.dist.all_gather(weight, mesh[0], "R")
//     b = layer(a, weight)                        a = layer(x, v)
//                                                 b = layer(a, v)
//
// The function has to be private and the gather unconditional. A recursive call that passes the
// parameter on passes the gathered value. Callees come first, so a gather rises through several
// calls. The gathered value lives as long as the calls that use it.
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "dialect/operators/collective.h"
#include "ir/build.h"
#include "ir/module/call_graph.h"
#include "optimize/optimization.h"

namespace distir::optimize {

namespace {

struct CallSite {
  NamedFunction* caller;
  EditableBinding* binding;
};

class GatherHoisting {
 public:
  GatherHoisting(Program* program, Tally* tally) : program_(*program), tally_(*tally) {}

  void Run() {
    ir::CallGraph calls;
    for (NamedFunction& function : program_.functions) {
      by_name_[function.name.get()] = &function;
      calls.Add(function.name);
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      NamedFunction& caller = program_.functions[i];
      calls.Read(i, [&](const std::function<void(const ir::Expr&)>& visit) {
        for (EditableBinding* binding : caller.editable->Bindings()) {
          visit(binding->value);
          if (NamedFunction* callee = CalleeOf(binding->value))
            sites_[callee].push_back({&caller, binding});
        }
      });
    }
    for (size_t i : calls.CalleesFirst()) {
      if (!calls[i].is_value) Visit(&program_.functions[i]);
    }
  }

 private:
  NamedFunction* CalleeOf(const ir::Expr& value) {
    auto call = ir::Call::Cast(value);
    auto found = call.defined() ? by_name_.find(call.op().get()) : by_name_.end();
    return found == by_name_.end() ? nullptr : found->second;
  }

  void Visit(NamedFunction* function) {
    if (ir::IsPublic(function->editable->function()) || sites_[function].empty()) return;
    bool changed = false;
    for (size_t i = 0; i < function->editable->params().size(); ++i)
      changed = HoistParam(function, static_cast<int>(i)) || changed;
    if (changed) Rename(function);
  }

  /*! \brief The gather that is all a function does with a parameter, recursion aside. */
  EditableBinding* OnlyGatherOf(NamedFunction* function, int index) {
    EditableFunction& editable = *function->editable;
    const ir::Var& param = editable.params()[index];
    EditableBinding* gather = nullptr;
    for (EditableBinding* user : editable.UsersOf(param)) {
      auto call = ir::Call::Cast(user->value);
      if (CalleeOf(user->value) == function && call.args()[index].same_as(param)) continue;
      bool gathers = call.defined() &&
                     dialect::DTensorCollective(call.op()) == mesh::CollectiveKind::kAllGather &&
                     ir::DTensorType::Is(call.ty()) && user->body == editable.body();
      if (!gathers || gather != nullptr) return nullptr;
      gather = user;
    }
    return gather;
  }

  bool HoistParam(NamedFunction* function, int index) {
    EditableBinding* gather = OnlyGatherOf(function, index);
    if (gather == nullptr) return false;
    const ir::Var param = function->editable->params()[index];
    // The value that each call would pass, and the number of gathers for it.
    std::map<std::pair<const NamedFunction*, const ffi::Object*>, EditableBinding*> first;
    int num_gathers = 0;
    std::vector<std::pair<CallSite, EditableBinding*>>
        sources;  // with the call whose gather serves
    for (const CallSite& site : sites_[function]) {
      const ir::Expr& arg = ir::Call::Cast(site.binding->value).args()[index];
      if (site.caller == function && arg.same_as(param)) continue;
      EditableBinding*& earlier = first[{site.caller, arg.get()}];
      if (earlier == nullptr || !Serves(*site.caller, earlier, site.binding)) {
        earlier = site.binding;
        ++num_gathers;
      }
      sources.emplace_back(site, earlier);
    }
    if (num_gathers >= static_cast<int>(sites_[function].size())) {
      tally_.Skip("called once with each value");
      return false;
    }
    ++tally_.matched;
    auto call = ir::Call::Cast(gather->value);
    std::unordered_map<const EditableBinding*, ir::Var> gathered;
    for (const auto& [site, source] : sources) {
      EditableFunction& editable = *site.caller->editable;
      auto site_call = ir::Call::Cast(site.binding->value);
      ir::Var& value = gathered[source];
      if (!value.defined()) {
        value = editable.InsertBefore(
            source, gather->var.name(),
            dialect::MakeCollective(mesh::CollectiveKind::kAllGather, site_call.args()[index],
                                    ir::DTensorType::Cast(call.ty())));
      }
      ffi::Array<ir::Expr> args = site_call.args();
      args.Set(index, value);
      editable.SetValue(site.binding,
                        ir::MakeCall(site_call.ty(), site_call.op(), args, site_call.attrs(),
                                     site_call.ty_args(), site_call.span()));
    }
    function->editable->Alias(gather, param);
    function->editable->RetypeParam(index, call.ty());
    return true;
  }

  /*! \brief True if a variable bound in front of `earlier` can be used at `binding`. */
  static bool Serves(const NamedFunction& caller, const EditableBinding* earlier,
                     const EditableBinding* binding) {
    if (earlier->block == binding->block) return true;
    // A new variable of a dataflow block stays inside it.
    return !earlier->block->is_dataflow && caller.editable->IsVisible(earlier->var, binding);
  }

  /*! \brief Gives a function of another type another global variable of the same name. */
  void Rename(NamedFunction* function) {
    ir::GlobalVar name = ir::MakeGlobalVar(function->name.name());
    ir::Function before = function->editable->function();
    ffi::Array<ir::Type> params;
    for (const ir::Var& param : function->editable->params()) params.push_back(param.ty());
    ir::SetType(name, ir::MakeFuncType(params, before.ret_ty(), before.is_pure()));
    for (const CallSite& site : sites_[function]) {
      auto call = ir::Call::Cast(site.binding->value);
      site.caller->editable->SetValue(
          site.binding,
          ir::MakeCall(call.ty(), name, call.args(), call.attrs(), call.ty_args(), call.span()));
    }
    by_name_[name.get()] = function;
    function->name = name;
  }

  Program& program_;
  Tally& tally_;
  std::unordered_map<const ffi::Object*, NamedFunction*> by_name_;
  std::unordered_map<const NamedFunction*, std::vector<CallSite>> sites_;
};

}  // namespace

void HoistGathers(Program* program, Tally* tally) { GatherHoisting(program, tally).Run(); }

}  // namespace distir::optimize
