// WriteInPlace: results take the memory of what is not read any more.
//
//     def main(w, g):                               # w is donated
//         alloc = R.builtin.alloc_tensor(..)
//         cls.step(w, g, alloc)                     # alloc[i] = w[i] - g[i]
//         return alloc
//     ->
//         alloc = R.call_packed("distir.runtime.donated", w)
//         cls.step_in_place(alloc, g)               # alloc[i] = alloc[i] - g[i]
//
// An operand that the function has made itself takes the result of an elementwise kernel that is
// the last to read it. A donated parameter takes a result that is returned: of the elementwise
// kernel that reads it last, or of anything that begins behind its last use. At run time the
// parameter may turn out to be somebody else's (runtime/session/donated_tensors.h), who gets no
// result then.
//
// Runs behind CallTIRRewrite, which makes the allocations, and ShareOperands, which moves some.

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "abi/builtin.h"
#include "ir/build.h"
#include "ir/kernel_in_place.h"
#include "ir/report.h"
#include "ir/rewriter.h"
#include "lower/param_names.h"
#include "target/cpu/in_place_kernel.h"
#include "target/cpu/passes.h"
#include "unfuse/new_kernels.h"

namespace distir::target {

namespace ffi = tvm::ffi;

namespace {

constexpr size_t kReturned = std::numeric_limits<size_t>::max();

/*! \brief The kernels of a module, and their forms that write in place, each once. */
class Kernels {
 public:
  explicit Kernels(const ir::IRModule& mod) : kernels_(mod) {}

  ir::PrimFunc Find(const ir::Call& call) const {
    const auto name = ir::GlobalVar::Cast(call.op());
    return name.defined() ? kernels_.Find(name) : ir::PrimFunc();
  }
  bool CanWrite(const ir::PrimFunc& kernel, size_t operand) {
    const auto [found, is_new] = can_write_.try_emplace({kernel.get(), operand}, false);
    if (is_new) found->second = CanWriteToOperand(kernel, operand);
    return found->second;
  }
  ir::GlobalVar InPlace(const ir::Call& call, size_t operand) {
    const ir::PrimFunc kernel = Find(call);
    ir::GlobalVar& made = in_place_[{kernel.get(), operand}];
    if (!made.defined()) {
      replaced_.push_back(ir::GlobalVar::Cast(call.op()));
      made = kernels_.Add(ir::GlobalVar::Cast(call.op()).name() + "_in_place",
                          ir::WriteToOperand(kernel, operand));
    }
    return made;
  }
  bool any() const { return !replaced_.empty(); }
  /*! \brief Kernels that have such a form. */
  const std::vector<ir::GlobalVar>& replaced() const { return replaced_; }
  ir::IRModule AddedTo(const ir::IRModule& mod) const { return kernels_.AddedTo(mod); }

 private:
  using Key = std::pair<const ffi::Object*, size_t>;
  unfuse::NewKernels kernels_;
  std::map<Key, bool> can_write_;
  std::map<Key, ir::GlobalVar> in_place_;
  std::vector<ir::GlobalVar> replaced_;
};

/*! \brief A tensor of a function, under all of its names. */
struct Memory {
  ir::Var var;  // the first name
  bool is_made = false, is_donated = false;
  bool is_known = true;  // false where something may hold it that is not seen here
  int times_returned = 0;
  size_t first_use = kReturned, last_use = 0;
};

/*! \brief A kernel that writes to an operand. */
struct InPlace {
  size_t operand;
  bool is_donated;
};

/*! \brief The decisions for a function. */
class Plan {
 public:
  Plan(const ir::Function& function, Kernels* kernels) : kernels_(*kernels) {
    ReadParams(function);
    for (const ir::BindingBlock& block : function.body().blocks()) {
      for (const ir::Binding& each : block.bindings()) bindings_.push_back(each);
    }
    uses_ = ir::CountUses(function);
    for (at_ = 0; at_ < bindings_.size(); ++at_) Read(bindings_[at_]);
    ReadReturned(function.body().body());
    for (at_ = 0; at_ < bindings_.size(); ++at_) Decide(bindings_[at_]);
    GiveRest();
  }

  bool any() const { return !in_place_.empty() || !given_.empty(); }
  /*! \brief Finds the operand that a call writes to; null if it writes to none. */
  const InPlace* Find(const ir::Call& call) const {
    const auto found = in_place_.find(call.get());
    return found == in_place_.end() ? nullptr : &found->second;
  }
  /*! \brief True if the allocation is no longer made. */
  bool IsGone(const ir::Var& var) const { return gone_.count(var.get()) > 0; }
  /*! \brief The donated parameter whose memory this takes, and gets its elements if `copies`. */
  struct Gift {
    ir::Var param;
    bool is_read;
  };
  const Gift* FindGift(const ir::Var& allocated) const {
    const auto found = given_.find(allocated.get());
    return found == given_.end() ? nullptr : &found->second;
  }

 private:
  void ReadParams(const ir::Function& function) {
    for (const ir::Var& param : function.params()) New(param);
    if (lower::DonatedNames(function).empty()) return;
    const lower::ParamNames names(function);
    for (const ffi::Any& stated : lower::DonatedNames(function)) {
      const std::string name = names.NameNow(stated);
      if (name.empty()) continue;  // another program's
      const ir::Var& param = function.params()[names.PositionOf(name)];
      MemoryOf(param).is_donated = ir::TensorType::Is(param.ty());
      donated_.push_back(param);
    }
  }

  void Read(const ir::Binding& binding) {
    const auto bound = ir::VarBinding::Cast(binding);
    if (!bound.defined()) {
      const ir::Expr value = ir::MatchCast::Cast(binding).value();
      return ir::Var::Is(value) ? Alias(binding.var(), ir::Var::Cast(value)) : Hold(value);
    }
    const ir::Expr& value = bound.value();
    const ir::Var& var = bound.var();
    if (ir::Var::Is(value)) return Alias(var, ir::Var::Cast(value));
    if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) tuples_.emplace(var.get(), tuple);
    const auto call = ir::Call::Cast(value);
    if (!call.defined()) return Hold(value);
    if (ir::IsOp(call.op(), "relax.reshape") && ir::Var::Is(call.args()[0])) {
      Use(call.args()[0]);
      return Alias(var, ir::Var::Cast(call.args()[0]));
    }
    if (ir::IsOp(call.op(), "relax.builtin.alloc_tensor")) {
      New(var);
      MemoryOf(var).is_made = true;
      return;
    }
    ReadsOnly(var, call) ? Use(value) : Hold(value);
  }

  /*! \brief True if a call holds none of its arguments when it is done. */
  bool ReadsOnly(const ir::Var& var, const ir::Call& call) const {
    if (uses_.count(var.get()) > 0 && uses_.at(var.get()) > 0) return false;
    if (kernels_.Find(call).defined()) return true;
    const auto packed = ir::ExternFunc::Cast(call.op());
    return packed.defined() && std::string(packed.name()).rfind(abi::kRuntime, 0) == 0;
  }

  void ReadReturned(const ir::Expr& value) {
    if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) ReadReturned(field);
      return;
    }
    if (!ir::Var::Is(value)) return;
    const auto tuple = tuples_.find(value.get());
    if (tuple != tuples_.end()) {
      // Its fields were taken for held where it is made.
      for (const ir::Expr& field : tuple->second.fields()) {
        if (ir::Var::Is(field) && uses_.at(value.get()) == 1) --holders_[&MemoryOf(field)];
      }
      return ReadReturned(tuple->second);
    }
    Memory& memory = MemoryOf(value);
    ++memory.times_returned;
    memory.last_use = kReturned;
  }

  void New(const ir::Var& var) {
    memories_.push_back(std::make_unique<Memory>());
    memories_.back()->var = var;
    of_[var.get()] = memories_.back().get();
  }
  void Alias(const ir::Var& var, const ir::Var& of) { of_[var.get()] = &MemoryOf(of); }

  Memory& MemoryOf(const ir::Expr& var) {
    if (of_.count(var.get()) == 0) New(ir::Var::Cast(var));
    Memory* found = of_.at(var.get());
    while (merged_.count(found) > 0) found = merged_.at(found);
    return *found;
  }

  void Use(const ir::Expr& value) {
    ir::VisitUses(value, [this](const ir::Var& var) {
      Memory& memory = MemoryOf(var);
      memory.first_use = std::min(memory.first_use, at_);
      memory.last_use = std::max(memory.last_use, at_);
    });
  }
  void Hold(const ir::Expr& value) {
    Use(value);
    ir::VisitUses(value, [this](const ir::Var& var) { ++holders_[&MemoryOf(var)]; });
  }
  bool IsHeld(const Memory& memory) const {
    const auto found = holders_.find(&memory);
    return found != holders_.end() && found->second > 0;
  }

  void Decide(const ir::Binding& binding) {
    const auto call = ir::BoundCall(binding);
    const ir::PrimFunc kernel = call.defined() ? kernels_.Find(call) : ir::PrimFunc();
    if (!kernel.defined() || call.args().size() != kernel.params().size()) return;
    const ir::Expr& last = call.args()[call.args().size() - 1];
    if (!ir::Var::Is(last) || call.args().size() < 2) return;
    Memory& result = MemoryOf(last);
    if (!result.is_made || !result.var.same_as(last) || result.first_use != at_) return;
    const bool is_result = result.times_returned == 1 && !IsHeld(result);
    for (const bool donated : {true, false}) {
      for (size_t i = 0; i + 1 < call.args().size(); ++i) {
        const ir::Expr& operand = call.args()[i];
        if (!ir::Var::Is(operand) || !ir::StructurallyEqual(operand.ty(), last.ty())) continue;
        Memory& memory = MemoryOf(operand);
        const bool fits = donated ? is_result && memory.is_donated && memory.var.same_as(operand)
                                  : memory.is_made;
        if (!fits || memory.times_returned > 0 || IsHeld(memory) || memory.last_use != at_ ||
            CountOf(call, memory) != 1 || !kernels_.CanWrite(kernel, i))
          continue;
        in_place_.emplace(call.get(), InPlace{i, donated});
        if (donated) {
          given_.emplace(result.var.get(), Gift{memory.var, true});
          memory.is_donated = false;
          result.is_made = false;
        } else {
          gone_.insert(result.var.get());
          Merge(&result, &memory);
        }
        return;
      }
    }
  }

  int CountOf(const ir::Call& call, const Memory& memory) {
    int count = 0;
    for (const ir::Expr& arg : call.args()) {
      ir::VisitUses(arg, [&](const ir::Var& var) { count += &MemoryOf(var) == &memory; });
    }
    return count;
  }

  void Merge(Memory* result, Memory* into) {
    into->last_use = result->last_use;
    into->times_returned = result->times_returned;
    holders_[into] = holders_[result];
    merged_[result] = into;
  }

  /*! \brief Results that begin behind the last use of a donated parameter take its memory. */
  void GiveRest() {
    for (const auto& memory : memories_) {
      if (!memory->is_made || merged_.count(memory.get()) > 0 || memory->times_returned != 1 ||
          IsHeld(*memory))
        continue;
      for (const ir::Var& param : donated_) {
        Memory& donated = MemoryOf(param);
        if (!donated.is_donated || donated.times_returned > 0 || IsHeld(donated) ||
            (donated.first_use != kReturned && donated.last_use >= memory->first_use) ||
            !ir::StructurallyEqual(param.ty(), memory->var.ty()))
          continue;
        given_.emplace(memory->var.get(), Gift{param, false});
        donated.is_donated = false;
        break;
      }
    }
  }

  Kernels& kernels_;
  std::vector<ir::Binding> bindings_;
  std::unordered_map<const ffi::Object*, int> uses_;
  size_t at_ = 0;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::unordered_map<const ffi::Object*, Memory*> of_;
  std::unordered_map<const Memory*, Memory*> merged_;
  std::unordered_map<const Memory*, int> holders_;
  std::unordered_map<const ffi::Object*, ir::Tuple> tuples_;
  std::vector<ir::Var> donated_;
  std::unordered_map<const ffi::Object*, InPlace> in_place_;  // by call
  std::unordered_map<const ffi::Object*, Gift> given_;        // by allocation
  std::unordered_set<const ffi::Object*> gone_;               // allocations
};

class Writer : public ir::FunctionRewriter {
 public:
  Writer(const Plan& plan, Kernels* kernels) : plan_(plan), kernels_(*kernels) {}

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    const auto call = ir::Call::Cast(value);
    if (plan_.IsGone(var)) return;
    if (const Plan::Gift* gift = plan_.FindGift(var)) {
      ir::Count("donated");
      const std::string builtin = gift->is_read ? "donated" : "donated_memory";
      Bind(var, ir::MakeCall(var.ty(), ir::MakeExternFunc(abi::kRuntime + builtin),
                             {Rewrite(gift->param)}, ir::Node(), {var.ty()}));
      return;
    }
    const InPlace* in_place = call.defined() ? plan_.Find(call) : nullptr;
    if (in_place == nullptr) return FunctionRewriter::RewriteVarBinding(var, value);
    const ir::Expr& allocated = call.args()[call.args().size() - 1];
    if (!in_place->is_donated) {
      ir::Count("in place");
      Replace(ir::Var::Cast(allocated), Rewrite(call.args()[in_place->operand]));
    }
    ffi::Array<ir::Expr> args = RewriteAll(call.args());
    args.Set(in_place->operand, args[args.size() - 1]);
    args.pop_back();
    Bind(var, ir::MakeCall(var.ty(), kernels_.InPlace(call, in_place->operand), args, call.attrs(),
                           call.ty_args()));
  }

  const Plan& plan_;
  Kernels& kernels_;
};

/*! \brief The module without those of some kernels that nothing calls any more. */
ir::IRModule WithoutUnused(const ir::IRModule& mod, const std::vector<ir::GlobalVar>& kernels) {
  std::unordered_set<const ffi::Object*> used;
  for (const auto& [name, function] : mod.functions()) {
    const auto caller = ir::Function::Cast(function);
    if (!caller.defined()) continue;
    ir::VisitBindings(caller.body(), [&used](const ir::Binding& binding) {
      const ir::Call call = ir::BoundCall(binding);
      if (!call.defined()) return;
      used.insert(call.op().get());
      for (const ir::Expr& arg : call.args()) used.insert(arg.get());
    });
  }
  ir::FunctionMap functions = mod.functions();
  for (const ir::GlobalVar& kernel : kernels) {
    if (used.count(kernel.get()) == 0) functions.erase(kernel);
  }
  return ir::MakeModule(functions, mod.attrs(), mod.global_infos());
}

}  // namespace

ir::IRModule WriteInPlace(const ir::IRModule& mod) {
  Kernels kernels(mod);
  const ir::IRModule written = ir::RewriteFunctions(mod, [&](const ir::Function& function) {
    const Plan plan(function, &kernels);
    return plan.any() ? Writer(plan, &kernels).RewriteFunction(function) : ir::Function();
  });
  return kernels.any() ? WithoutUnused(kernels.AddedTo(written), kernels.replaced()) : written;
}

}  // namespace distir::target
