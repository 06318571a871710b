// Reads the steps of a worker and the memory that each storage holds meanwhile off a planned
// program.
#include "analysis/program_steps.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

#include "abi/collective.h"
#include "analysis/builtin_count.h"
#include "analysis/operator_calls.h"
#include "dialect/operators/collective_note.h"
#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "rules/tir/rule.h"

namespace distir::analysis {

namespace {

// Bytes of storages that smaller tensors in them leave unused.
const std::string kUnused = "unused in storages";

std::string TextOf(const ir::TensorType& type) {
  std::string text =
      type.has_dtype() ? std::string(ffi::DLDataTypeToString(type.dtype())) : std::string("?");
  text += "[";
  bool is_first = true;
  for (const ir::Expr& dim : ir::ShapeOf(type)) {
    if (!is_first) text += ", ";
    is_first = false;
    const int64_t size = ir::StaticDim(dim);
    text += size < 0 ? ir::Print(dim) : std::to_string(size);
  }
  return text + "]";
}

}  // namespace

/*! \brief Walks the functions of modules. */
class StepReader::Reader {
 public:
  explicit Reader(std::optional<CollectiveTimes> times) : times_(std::move(times)) {}

  std::vector<FunctionSteps> ReadModule(const ir::IRModule& mod) {
    functions_ = mod.functions();
    for (const auto& [name, function] : ir::OrderedFunctions(mod)) {
      if (ir::Function::Is(function)) Read(name);
    }
    return std::exchange(done_, {});
  }

 private:
  void Read(const ir::GlobalVar& name) {
    auto [known, is_new] = states_.emplace(name.name(), State{});
    if (!is_new) {
      if (!known->second.is_read) {
        TVM_FFI_THROW(ValueError) << "`" << name.name()
                                  << "` calls itself, so how often it runs is not known";
      }
      return;
    }
    const ir::Function function = ir::Function::Cast(functions_.at(name));
    FunctionSteps steps;
    steps.name = name.name();
    if (auto op = ir::GetAttr(function.attrs(), kOperatorAttr).as<ffi::String>())
      steps.op = std::string(*op);
    for (const ir::Var& param : function.params())
      steps.params.push_back({std::string(param.name()), BytesOf(param.ty())});
    Constants constants;
    steps.body = ReadBody(function, !steps.op.empty(), &constants);
    State& state = states_[name.name()];
    state.is_read = true;
    state.constants = std::move(constants);
    state.peak_bytes = steps.body.peak_bytes;
    done_.push_back(std::move(steps));
  }

  // Tensors that are part of a function and of those that it calls, with their bytes.
  using Constants = std::unordered_map<const ffi::Object*, double>;

  struct State {
    bool is_read = false;
    double peak_bytes = 0;
    Constants constants;
  };

  // Memory that is held within one body.
  struct Root {
    std::string name;
    double bytes;
    int64_t first, last;
  };

  class BodyReader;
  Body ReadBody(const ir::Function& function, bool is_operator, Constants* constants);

  struct CountedKernel {
    ir::PrimFunc kernel;  // stays, so that no other one gets its address
    KernelCount count;
  };

  ir::FunctionMap functions_;
  std::optional<CollectiveTimes> times_;
  std::unordered_map<std::string, State> states_;                  // by function
  std::unordered_map<const ffi::Object*, CountedKernel> kernels_;  // of static sizes
  std::vector<FunctionSteps> done_;
};

class StepReader::Reader::BodyReader {
 public:
  /*! \param constants Of the function that the body is in. */
  BodyReader(Reader* reader, Constants* constants) : reader_(*reader), constants_(*constants) {}

  /*! \brief Leaves out the bytes of what a function keeps between its kernels. */
  void CountOnly(const ir::Function& function) {
    keeps_between_ = true;
    for (const ir::Var& param : function.params()) outside_.insert(param.get());
    ir::VisitUses(function.body().body(),
                  [&](const ir::Var& result) { outside_.insert(result.get()); });
  }

  Body Read(const ir::SeqExpr& seq) {
    for (const ir::BindingBlock& block : seq.blocks()) {
      for (const ir::Binding& binding : block.bindings()) {
        ir::Expr value;
        if (auto bound = ir::VarBinding::Cast(binding); bound.defined()) value = bound.value();
        if (auto cast = ir::MatchCast::Cast(binding); cast.defined()) value = cast.value();
        sources_.emplace(binding.var().get(), std::set<int>());
        Visit(binding.var(), value);
        ++at_;
      }
    }
    Use(seq.body());
    const std::set<int> sources = SourcesOf(seq.body());
    body_.result_after.assign(sources.begin(), sources.end());
    Finish();
    return std::move(body_);
  }

 private:
  void Visit(const ir::Var& var, const ir::Expr& value) {
    if (IsOtherName(var, value)) return;
    Use(value);
    registers_.push_back(var);
    if (auto branch = ir::If::Cast(value); branch.defined()) return VisitBranch(var, branch);
    const ir::Call call = ir::Call::Cast(value);
    if (!call.defined()) return VisitAlias(var, value);
    if (ir::GlobalVar::Is(call.op())) return VisitFunction(var, call);
    if (auto packed = ir::ExternFunc::Cast(call.op()); packed.defined())
      return VisitExtern(var, call, call.args());
    // Of calls of packed functions, the function's.
    const std::string name = ir::CalleeName(call);
    if (name == "relax.memory.alloc_storage") {
      const ir::ShapeExpr size = ir::ShapeExpr::Cast(call.args()[0]);
      NewRoot(var, static_cast<double>(std::max<int64_t>(ir::StaticDim(size.values()[0]), 0)));
    } else if (name == "relax.memory.alloc_tensor") {
      Alias(var, call.args()[0]);
      for (int root : RootsOf(call.args()[0])) tenants_[root].push_back({at_, var});
    } else if (name == "relax.builtin.alloc_tensor") {
      NewRoot(var, BytesOf(var.ty()));
    } else if (ir::IsOp(call.op(), "relax.call_pure_packed") ||
               ir::IsOp(call.op(), "relax.call_inplace_packed")) {
      VisitExtern(var, call, {call.args().begin() + 1, call.args().end()});
    } else if (name == "relax.vm.call_tir_dyn") {
      VisitKernelWithSizes(var, call);
    } else if (ir::IsOp(call.op(), "relax.call_dps_packed")) {
      VisitExtern(var, call, ir::Tuple::Cast(call.args()[1]).fields());
    } else if (rules::KernelTable::IsKernelCall(call.op())) {
      VisitKernelCall(var, call);
    } else if (name == "relax.invoke_pure_closure" || name == "relax.invoke_closure") {
      AddStep(StepKind::kPacked, var, name, call.args()).count.unknown = "a closure";
      NewRoot(var, BytesOf(var.ty()));
    } else {
      // Other virtual machine functions return a view of their argument, or shapes.
      for (const ir::Expr& arg : call.args()) Alias(var, arg);
    }
  }

  /*! \brief True if a variable is only another name of one; TVM drops it. */
  bool IsOtherName(const ir::Var& var, const ir::Expr& value) {
    ir::Expr source = value;
    if (auto item = ir::TupleGetItem::Cast(value); item.defined()) {
      auto tuple = tuples_.find(Original(item.tuple()).get());
      if (tuple == tuples_.end()) return false;
      source = tuple->second.fields()[item.index()];
    }
    if (!ir::Var::Is(source)) return false;
    original_[var.get()] = Original(source);
    Alias(var, source);
    // A kernel's result is called as the variable that stands for the tensor it has written to.
    names_[source.get()] = var.name();
    return true;
  }

  ir::Expr Original(const ir::Expr& var) const {
    auto found = original_.find(var.get());
    return found == original_.end() ? var : found->second;
  }

  void VisitAlias(const ir::Var& var, const ir::Expr& value) {
    Alias(var, value);
    if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) tuples_.emplace(var.get(), tuple);
  }

  void VisitFunction(const ir::Var& var, const ir::Call& call) {
    const ir::GlobalVar callee = ir::GlobalVar::Cast(call.op());
    const ir::BaseFunc function = reader_.functions_.at(callee);
    if (auto kernel = ir::PrimFunc::Cast(function); kernel.defined())
      return VisitKernel(var, callee.name(), kernel, call.args());
    reader_.Read(callee);
    AddStep(StepKind::kCall, var, callee.name(), call.args());
    const State& state = reader_.states_.at(callee.name());
    held_in_calls_.back() = state.peak_bytes;
    if (called_.insert(callee.get()).second)
      constants_.insert(state.constants.begin(), state.constants.end());
    NewRoot(var, BytesOf(var.ty()));
  }

  void VisitKernel(const ir::Var& var, const std::string& name, const ir::PrimFunc& kernel,
                   const ir::NodeArray<ir::Expr>& args) {
    Step& step = AddStep(StepKind::kKernel, var, name, args);
    if (HasSymbolicSizes(kernel)) {
      step.count = CountKernel(kernel, args);
    } else {
      auto [known, is_new] = reader_.kernels_.emplace(kernel.get(), CountedKernel());
      if (is_new) known->second = {kernel, CountKernel(kernel, args)};
      step.count = known->second.count;
    }
    for (size_t i = 0; i < args.size() && i < step.count.bytes_written.size(); ++i) {
      if (keeps_between_ && ir::Var::Is(args[i]) && outside_.count(args[i].get()) == 0)
        step.count.bytes_read[i] = step.count.bytes_written[i] = 0;
      if (step.count.bytes_written[i] > 0) Writes(args[i]);
    }
  }

  void VisitKernelWithSizes(const ir::Var& var, const ir::Call& call) {
    const ir::GlobalVar callee = ir::GlobalVar::Cast(call.args()[0]);
    const ir::Tuple tuple = ir::Tuple::Cast(call.args()[1]);
    ffi::Array<ir::Expr> args;
    for (const ir::Expr& field : tuple.fields()) {
      if (auto sizes = ir::ShapeExpr::Cast(field); sizes.defined()) {
        for (const ir::Expr& size : sizes.values()) args.push_back(size);
      } else {
        args.push_back(field);
      }
    }
    VisitKernel(var, callee.name(), ir::PrimFunc::Cast(reader_.functions_.at(callee)), args);
  }

  /*! \brief R.call_tir, before it is given a tensor to write to. */
  void VisitKernelCall(const ir::Var& var, const ir::Call& call) {
    const ir::GlobalVar callee = ir::GlobalVar::Cast(call.args()[0]);
    ffi::Array<ir::Expr> args = ir::Tuple::Cast(call.args()[1]).fields();
    if (ir::TensorType::Is(var.ty())) args.push_back(var);
    if (call.args().size() > 2) {
      if (auto sizes = ir::ShapeExpr::Cast(call.args()[2]); sizes.defined()) {
        for (const ir::Expr& size : sizes.values()) args.push_back(size);
      }
    }
    VisitKernel(var, callee.name(), ir::PrimFunc::Cast(reader_.functions_.at(callee)), args);
    if (BytesOf(var.ty()) > 0) NewRoot(var, BytesOf(var.ty()));
  }

  /*! \param args Of the packed function that the call is one of. */
  void VisitExtern(const ir::Var& var, const ir::Call& call, const ir::NodeArray<ir::Expr>& args) {
    const std::string name = ir::CalleeName(call);
    const bool is_ours = name.compare(0, abi::kRuntime.size(), abi::kRuntime) == 0;
    std::string kind = is_ours ? name.substr(abi::kRuntime.size()) : std::string();
    if (kind == "new_tensor") return NewRoot(var, BytesOf(var.ty()));
    if (name == "vm.builtin.reshape") return Alias(var, args[0]);
    if (kind == "donated" || kind == "donated_memory") return Alias(var, args[0]);
    if (BytesOf(var.ty()) > 0) NewRoot(var, BytesOf(var.ty()));
    // A function that returns no tensor writes to its last argument.
    const ir::Expr result = BytesOf(var.ty()) > 0 || args.empty() ? ir::Expr(var) : args.back();
    if (is_ours && IsComputed(kind)) {
      AddStep(StepKind::kPacked, var, kind, args).count = CountBuiltin(kind, args, result.ty());
      return Writes(result);
    }
    const abi::CollectiveRecord* record = abi::FindBuiltin(name);
    if (record != nullptr && record->family == abi::CollectiveFamily::kKernel)
      return VisitOwnTokens(var, *record, args);
    if (!is_ours) {
      Step& step = AddStep(StepKind::kPacked, var, name, args);
      for (const ir::Expr& arg : args) step.count.bytes_read.push_back(BytesOf(arg.ty()));
      step.count.unknown = "the packed function " + name;
      // It may write to any of them.
      for (const ir::Expr& arg : args) {
        if (ir::Var::Is(arg)) GivenByLastStep(arg);
      }
      return;
    }
    if (record != nullptr) kind = record->name;
    Step& step = AddStep(StepKind::kCollective, var, kind, args);
    for (const ir::Expr& arg : args) {
      const std::string text = StringArgument(arg);
      if (text.empty()) continue;
      if (text[0] == '{') step.plan = text;
      if (text[0] == '[' && step.groups.empty()) step.groups = text;
    }
    step.note = dialect::NoteOf(call);
    Writes(result);
    step.given_bytes = args.empty() ? 0 : BytesOf(args[0].ty());
    step.made_bytes = BytesOf(result.ty());
    if (record != nullptr && record->rows != abi::RowCount::kShape) {
      step.given_bytes = BytesOfRows(record->rows, args, result.ty());
    } else if (record != nullptr && record->collective == abi::Collective::kCombineTokens) {
      step.given_bytes = step.made_bytes;  // its argument has room for the rows of all devices
    }
    if (reader_.times_) {
      step.seconds = reader_.times_->Of(kind, step.plan.empty() ? step.groups : step.plan,
                                        step.given_bytes, step.made_bytes);
    }
    if (record != nullptr && record->family == abi::CollectiveFamily::kFused)
      step.count = CountBuiltin(kind, args, result.ty());
  }

  /*! \brief Rows that are taken or placed, of which most are zeros. */
  void VisitOwnTokens(const ir::Var& var, const abi::CollectiveRecord& record,
                      const ir::NodeArray<ir::Expr>& args) {
    Step& step = AddStep(StepKind::kPacked, var, record.name, args);
    for (const ir::Expr& arg : args) step.count.bytes_read.push_back(BytesOf(arg.ty()));
    if (BytesOf(var.ty()) > 0) {
      step.count.bytes_written = {BytesOf(var.ty())};
      return Writes(var);
    }
    const bool has_counts = record.collective == abi::Collective::kSelectTokens ||
                            record.collective == abi::Collective::kSelectPairs;
    const size_t num = has_counts ? 2 : 1;
    for (size_t i = args.size() - num; i < args.size(); ++i) Writes(args[i]);
  }

  void VisitBranch(const ir::Var& var, const ir::If& branch) {
    Body on_true = BodyReader(&reader_, &constants_).Read(branch.true_branch());
    Body on_false = BodyReader(&reader_, &constants_).Read(branch.false_branch());
    Step& step = AddStep(StepKind::kBranch, var, "if", {branch.cond()});
    const std::set<int> sources = SourcesOf(branch);
    step.after.assign(sources.begin(), sources.end());
    held_in_calls_.back() = std::max(on_true.peak_bytes, on_false.peak_bytes);
    step.on_true = std::make_unique<Body>(std::move(on_true));
    step.on_false = std::make_unique<Body>(std::move(on_false));
    NewRoot(var, BytesOf(var.ty()));
  }

  Step& AddStep(StepKind kind, const ir::Var& var, const std::string& callee,
                const ir::NodeArray<ir::Expr>& args) {
    Step step;
    step.kind = kind;
    step.callee = callee;
    std::set<int> sources;
    for (const ir::Expr& arg : args) {
      const std::set<int> more = SourcesOf(arg);
      sources.insert(more.begin(), more.end());
      ir::ForEachLeaf(arg.ty(), [&](const ir::Type& leaf) {
        if (auto tensor = ir::TensorType::Cast(leaf); tensor.defined())
          step.shapes.push_back(TextOf(tensor));
      });
    }
    step.after.assign(sources.begin(), sources.end());
    sources_[var.get()] = {static_cast<int>(body_.steps.size())};
    body_.steps.push_back(std::move(step));
    inputs_.push_back(args);
    outputs_.push_back({});
    results_.push_back(var);
    step_at_.push_back(at_);
    held_in_calls_.push_back(0);
    return body_.steps.back();
  }

  /*! \brief Notes what the last step writes to. */
  void Writes(const ir::Expr& expr) {
    if (!ir::Var::Is(expr)) return;
    outputs_.back().push_back(ir::Var::Cast(expr));
    GivenByLastStep(expr);
  }

  void GivenByLastStep(const ir::Expr& var) {
    sources_[var.get()] = {static_cast<int>(body_.steps.size()) - 1};
  }

  /*! \brief The steps that give the variables in an expression, and kEntry. */
  std::set<int> SourcesOf(const ir::Expr& expr) const {
    std::set<int> sources;
    ir::VisitUses(expr, [&](const ir::Var& used) {
      auto found = sources_.find(used.get());
      if (found == sources_.end()) {
        sources.insert(kEntry);
      } else {
        sources.insert(found->second.begin(), found->second.end());
      }
    });
    return sources;
  }

  void NewRoot(const ir::Var& var, double bytes) {
    if (bytes <= 0) return;
    body_.allocations.push_back(bytes);
    roots_of_[var.get()].push_back(static_cast<int>(roots_.size()));
    roots_.push_back({std::string(), bytes, at_, at_});
    tenants_.push_back({{at_, var}});
  }

  const std::vector<int>& RootsOf(const ir::Expr& expr) {
    static const std::vector<int> none;
    auto found = roots_of_.find(expr.get());
    return found == roots_of_.end() ? none : found->second;
  }

  void Alias(const ir::Var& var, const ir::Expr& value) {
    const std::set<int> sources = SourcesOf(value);
    sources_[var.get()].insert(sources.begin(), sources.end());
    ir::VisitUses(value, [&](const ir::Var& used) {
      const std::vector<int> roots = RootsOf(used);
      std::vector<int>& own = roots_of_[var.get()];
      for (int root : roots) {
        if (std::find(own.begin(), own.end(), root) == own.end()) own.push_back(root);
      }
    });
  }

  /*! \brief Tensors that are part of the program, each once. */
  void AddConstants(const ir::Expr& value) {
    if (auto constant = ir::Constant::Cast(value); constant.defined()) {
      // Copies of a constant have one tensor.
      const auto tensor = constant.value().as<ffi::ObjectRef>();
      constants_.emplace(tensor.has_value() ? tensor->get() : value.get(), BytesOf(value.ty()));
    } else if (auto call = ir::Call::Cast(value); call.defined()) {
      for (const ir::Expr& arg : call.args()) AddConstants(arg);
    } else if (auto tuple = ir::Tuple::Cast(value); tuple.defined()) {
      for (const ir::Expr& field : tuple.fields()) AddConstants(field);
    }
  }

  void Use(const ir::Expr& value) {
    AddConstants(value);
    ir::VisitUses(value, [&](const ir::Var& used) {
      used_.insert(Original(used).get());
      for (int root : RootsOf(used)) roots_[root].last = at_;
    });
  }

  std::string NameOf(const ir::Var& var) const {
    auto found = names_.find(var.get());
    return found == names_.end() ? std::string(var.name()) : found->second;
  }

  /*! \brief Tensor that lies in a root at a time: it may be smaller than the storage. */
  Allocation TenantOf(int root, int64_t at) const {
    const auto& tenants = tenants_[root];
    // First comes the storage itself.
    if (tenants.size() == 1) return {NameOf(tenants[0].second), roots_[root].bytes};
    size_t found = 1;
    for (size_t i = 2; i < tenants.size() && tenants[i].first <= at; ++i) found = i;
    const ir::Var& var = tenants[found].second;
    return {NameOf(var), std::min(BytesOf(var.ty()), roots_[root].bytes)};
  }

  void Finish() {
    // Names, which come behind the steps that give them.
    for (size_t i = 0; i < body_.steps.size(); ++i) {
      Step& step = body_.steps[i];
      const std::vector<ir::Var>& outputs = outputs_[i];
      step.name = NameOf(outputs.empty() ? results_[i] : outputs[0]);
      for (const ir::Expr& arg : inputs_[i]) {
        ir::VisitUses(arg, [&](const ir::Var& used) {
          for (const ir::Var& output : outputs) {
            if (output.same_as(used)) return;
          }
          step.reads.push_back(NameOf(used));
        });
      }
    }
    // The virtual machine forgets a variable behind its last use; where there is none, at the end.
    for (const ir::Var& var : registers_) {
      if (used_.count(var.get()) > 0) continue;
      for (int root : RootsOf(var)) roots_[root].last = at_;
    }
    // Bytes that begin and end to be held, by time.
    std::vector<double> change(at_ + 2, 0);
    for (const Root& root : roots_) {
      change[root.first] += root.bytes;
      change[root.last + 1] -= root.bytes;
    }
    double live = 0;
    size_t step = 0;
    int64_t peak_at = -1;
    for (int64_t at = 0; at <= at_; ++at) {
      live += change[at];
      double within = 0;
      for (; step < step_at_.size() && step_at_[step] == at; ++step) {
        body_.steps[step].live_bytes = live;
        within = std::max(within, held_in_calls_[step] - ResultOf(step));
      }
      if (live + within > body_.peak_bytes) {
        body_.peak_bytes = live + within;
        peak_at = at;
        // Memory is allocated in front of the step that writes to it.
        const bool is_step = step > 0 && step_at_[step - 1] == at;
        const size_t next = is_step ? step - 1 : std::min(step, step_at_.size() - 1);
        body_.peak_step = step_at_.empty() ? -1 : static_cast<int64_t>(next);
      }
    }
    const int64_t computed_at =
        body_.peak_step < 0 ? peak_at : std::max(peak_at, step_at_[body_.peak_step]);
    double unused = 0;
    for (size_t root = 0; root < roots_.size(); ++root) {
      if (roots_[root].first > peak_at || roots_[root].last < peak_at) continue;
      body_.alive.push_back(TenantOf(static_cast<int>(root), computed_at));
      unused += roots_[root].bytes - body_.alive.back().bytes;
    }
    if (unused > 0) body_.alive.push_back({kUnused, unused});
    for (size_t i = 0; i < step_at_.size(); ++i) {
      if (step_at_[i] == peak_at && held_in_calls_[i] > ResultOf(i))
        body_.alive.push_back({"in " + body_.steps[i].callee, held_in_calls_[i] - ResultOf(i)});
    }
  }

  /*! \brief Bytes of a call's result, which the caller holds from there on. */
  double ResultOf(size_t step) const {
    return held_in_calls_[step] > 0 ? std::min(held_in_calls_[step], BytesOf(results_[step].ty()))
                                    : 0;
  }

  Reader& reader_;
  Constants& constants_;
  std::unordered_set<const ffi::Object*> called_;  // functions
  bool keeps_between_ = false;
  std::unordered_set<const ffi::Object*> outside_;  // parameters and results
  Body body_;
  int64_t at_ = 0;
  std::vector<Root> roots_;
  std::vector<std::vector<std::pair<int64_t, ir::Var>>> tenants_;  // by root, since when
  std::unordered_map<const ffi::Object*, std::vector<int>> roots_of_;
  std::unordered_map<const ffi::Object*, std::string> names_;
  std::unordered_map<const ffi::Object*, ir::Expr> original_;  // of other names
  std::unordered_map<const ffi::Object*, ir::Tuple> tuples_;
  std::unordered_map<const ffi::Object*, std::set<int>> sources_;  // steps, of what is defined here
  std::vector<ir::Var> registers_;                                 // all variables but other names
  std::unordered_set<const ffi::Object*> used_;
  // By step.
  std::vector<ffi::Array<ir::Expr>> inputs_;
  std::vector<std::vector<ir::Var>> outputs_;
  std::vector<ir::Var> results_;
  std::vector<int64_t> step_at_;
  std::vector<double> held_in_calls_;
};

Body StepReader::Reader::ReadBody(const ir::Function& function, bool is_operator,
                                  Constants* constants) {
  BodyReader reader(this, constants);
  if (is_operator) reader.CountOnly(function);
  Body body = reader.Read(function.body());
  for (const auto& [constant, bytes] : *constants) body.constant_bytes += bytes;
  return body;
}

StepReader::StepReader(std::optional<CollectiveTimes> times)
    : reader_(std::make_unique<Reader>(std::move(times))) {}
StepReader::~StepReader() = default;

std::vector<FunctionSteps> StepReader::Read(const ir::IRModule& mod) {
  return reader_->ReadModule(mod);
}

}  // namespace distir::analysis
