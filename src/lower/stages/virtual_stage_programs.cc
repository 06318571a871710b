// Cuts a worker's function into one function for each virtual stage.
#include "lower/stages/virtual_stage_programs.h"

#include <tvm/ffi/error.h>

#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ir/build.h"
#include "ir/module/renew.h"
#include "ir/rewriter.h"
#include "ir/symbolic.h"
#include "lower/local/local_shardings.h"

namespace distir::lower {

namespace {

/*! \brief Variables in order of first sight. */
class Vars {
 public:
  void Add(const ir::Var& var) {
    if (known_.insert(var.get()).second) vars_.push_back(var);
  }
  bool Contains(const ir::Var& var) const { return known_.count(var.get()) > 0; }
  size_t size() const { return vars_.size(); }
  const ir::Var& operator[](size_t i) const { return vars_[i]; }
  auto begin() const { return vars_.begin(); }
  auto end() const { return vars_.end(); }

 private:
  std::vector<ir::Var> vars_;
  std::unordered_set<const ffi::Object*> known_;
};

void AddSymbolsOf(const ir::Type& type, Vars* symbols) {
  ir::MapDims(type, [&](const ir::Expr& dim) {
    ir::VisitVars(dim, [&](const ir::Var& symbol) { symbols->Add(symbol); });
    return dim;
  });
}

/*! \brief The symbols that a parameter of this type, or a match_cast to it, defines: those that are
 * a dimension by themselves. */
void AddDefinedBy(const ir::Type& type, Vars* symbols) {
  ir::MapDims(type, [&](const ir::Expr& dim) {
    if (auto symbol = ir::Var::Cast(dim); symbol.defined()) symbols->Add(symbol);
    return dim;
  });
}

/*! \brief The symbols that the bindings of a function mention. */
class SymbolCollector : public ir::FunctionRewriter {
 public:
  Vars symbols;

 private:
  ir::Type RewriteType(const ir::Type& type) override {
    AddSymbolsOf(type, &symbols);
    return type;
  }
  ir::Expr RewriteLeaf(const ir::Expr& leaf) override {
    if (auto shape = ir::ShapeExpr::Cast(leaf); shape.defined()) {
      for (const ir::Expr& value : shape.values()) AddIn(value);
    } else {
      AddIn(leaf);
    }
    return leaf;
  }
  void AddIn(const ir::Expr& value) {
    ir::VisitVars(value, [&](const ir::Var& symbol) { symbols.Add(symbol); });
  }
};

/*! \brief One virtual stage's share of a function. */
struct Part {
  int virtual_stage;
  ffi::Array<ir::Binding> bindings;
  Vars uses;     // of what other parts make, or of parameters
  Vars symbols;  // that it mentions
  Vars casts;    // symbols that a match_cast in it defines
  Vars takes;    // values of earlier parts
  Vars sizes;    // symbols that are passed to it as shapes
};

class Cutter {
 public:
  explicit Cutter(const SpmdProgram& worker)
      : function_(worker.function),
        num_own_params_(function_.params().size() - (worker.sizes.empty() ? 0 : 1)) {
    for (const ir::Var& param : function_.params()) params_.Add(param);
    if (worker.virtual_stages.empty()) return;  // the program stays as it is
    std::map<int, Part> parts;
    size_t next = 0;
    for (const ir::BindingBlock& block : function_.body().blocks()) {
      for (const ir::Binding& binding : block.bindings()) {
        const int virtual_stage = worker.virtual_stages[next++];
        parts[virtual_stage].virtual_stage = virtual_stage;
        parts[virtual_stage].bindings.push_back(binding);
      }
    }
    for (auto& [virtual_stage, part] : parts) parts_.push_back(std::move(part));
  }

  std::vector<VirtualStageProgram> Run() {
    if (parts_.size() <= 1) {
      std::vector<int> params;
      for (size_t i = 0; i < num_own_params_; ++i) params.push_back(static_cast<int>(i));
      return {{parts_.empty() ? 0 : parts_[0].virtual_stage, function_, params,
               num_own_params_ < params_.size()}};
    }
    for (size_t i = 0; i < parts_.size(); ++i) Describe(i);
    for (size_t i = parts_.size(); i-- > 0;) PassOn(i);
    std::vector<VirtualStageProgram> programs;
    for (size_t i = 0; i < parts_.size(); ++i) programs.push_back(Write(i));
    return programs;
  }

 private:
  bool IsLast(size_t i) const { return i + 1 == parts_.size(); }

  /*! \brief Lists the variables that a part makes, uses and mentions. */
  void Describe(size_t i) {
    Part& part = parts_[i];
    std::unordered_set<const ffi::Object*> inner;  // of branches
    auto use = [&](const ir::Var& var) {
      auto made = made_in_.find(var.get());
      if (made != made_in_.end() ? made->second != i : params_.Contains(var)) {
        part.uses.Add(var);
      } else if (made == made_in_.end() && inner.count(var.get()) == 0) {
        part.symbols.Add(var);
      }
    };
    for (const ir::Binding& binding : part.bindings) {
      made_in_[binding.var().get()] = i;
      auto cast = ir::MatchCast::Cast(binding);
      if (cast.defined()) AddDefinedBy(cast.ty(), &part.casts);
      const ir::Expr value = cast.defined() ? cast.value() : ir::VarBinding::Cast(binding).value();
      if (auto branch = ir::If::Cast(value); branch.defined()) {
        auto enter = [&](const ir::Binding& its) { inner.insert(its.var().get()); };
        ir::VisitBindings(branch.true_branch(), enter);
        ir::VisitBindings(branch.false_branch(), enter);
      }
      ir::VisitUses(value, use);
    }
    if (IsLast(i)) {
      ir::VisitUses(function_.body().body(), use);
      AddSymbolsOf(function_.ret_ty(), &part.symbols);
    }
    SymbolCollector collector;
    const ir::SeqExpr body = Body(part, ir::MakeTuple({}));
    collector.RewriteFunction(ir::MakeFunction({}, body, body.ty(), false, function_.attrs()));
    for (const ir::Var& symbol : collector.symbols) part.symbols.Add(symbol);
  }

  /*! \brief Lists what a part takes of earlier ones, from what the next one takes. */
  void PassOn(size_t i) {
    Part& part = parts_[i];
    for (const ir::Var& var : part.uses) {
      if (!params_.Contains(var)) part.takes.Add(var);
    }
    if (!IsLast(i)) {
      for (const ir::Var& var : parts_[i + 1].takes) {
        if (made_in_.at(var.get()) != i) part.takes.Add(var);
      }
      for (const ir::Var& symbol : parts_[i + 1].sizes) part.symbols.Add(symbol);
    }
    Vars defined = part.casts;
    for (const ir::Var& var : part.takes) Mention(var.ty(), &part, &defined);
    for (const ir::Var& var : part.uses) {
      if (params_.Contains(var)) Mention(var.ty(), &part, &defined);
    }
    for (size_t s = 0; s < part.symbols.size(); ++s) {  // which may become more
      const ir::Var symbol = part.symbols[s];
      if (defined.Contains(symbol)) continue;
      if (i > 0) {
        part.sizes.Add(symbol);
        continue;
      }
      const ir::Var param = ParamThatDefines(symbol);
      part.uses.Add(param);
      Mention(param.ty(), &part, &defined);
    }
  }

  static void Mention(const ir::Type& type, Part* part, Vars* defined) {
    AddSymbolsOf(type, &part->symbols);
    AddDefinedBy(type, defined);
  }

  const ir::Var& ParamThatDefines(const ir::Var& symbol) const {
    for (const ir::Var& param : params_) {
      Vars defined;
      AddDefinedBy(param.ty(), &defined);
      if (defined.Contains(symbol)) return param;
    }
    TVM_FFI_THROW(InternalError) << "no parameter defines `" << symbol.name() << "`";
    TVM_FFI_UNREACHABLE();
  }

  static ir::SeqExpr Body(const Part& part, const ir::Expr& value) {
    return ir::MakeSeq({ir::MakeBlock(part.bindings, false)}, value, value.ty());
  }

  VirtualStageProgram Write(size_t i) {
    const Part& part = parts_[i];
    VirtualStageProgram program{part.virtual_stage, ir::Function(), {}, false};
    ffi::Array<ir::Var> params;
    const auto num_input = ir::GetAttr(function_.attrs(), "num_input").as<int64_t>();
    int64_t inputs = 0;
    for (size_t p = 0; p < params_.size(); ++p) {
      if (!part.uses.Contains(params_[p])) continue;
      params.push_back(params_[p]);
      if (p < num_own_params_) {
        program.params.push_back(static_cast<int>(p));
        inputs += num_input.has_value() && static_cast<int64_t>(p) < *num_input;
      } else {
        program.takes_sizes = true;
      }
    }
    for (const ir::Var& var : part.takes) params.push_back(var);
    for (const ir::Var& symbol : part.sizes)
      params.push_back(ir::MakeVar(symbol.name(), ir::MakeShapeType({symbol}), false));
    ir::Expr value = function_.body().body();
    if (!IsLast(i)) {
      ffi::Array<ir::Expr> fields;
      for (const ir::Var& var : parts_[i + 1].takes) fields.push_back(var);
      for (const ir::Var& symbol : parts_[i + 1].sizes) fields.push_back(ir::MakeShape({symbol}));
      value = ir::MakeTuple(fields);
    }
    ir::Node attrs = function_.attrs();
    if (num_input.has_value()) attrs = ir::WithAttr(attrs, "num_input", inputs);
    const ir::SeqExpr body = Body(part, value);
    program.function =
        ir::RenewVars(ir::MakeFunction(params, body, IsLast(i) ? function_.ret_ty() : value.ty(),
                                       false, WithShardingsOf(attrs, params, body)));
    return program;
  }

  const ir::Function function_;
  const size_t num_own_params_;
  Vars params_;
  std::vector<Part> parts_;
  std::unordered_map<const ffi::Object*, size_t> made_in_;  // parts, by variable
};

}  // namespace

std::vector<VirtualStageProgram> CutIntoVirtualStages(const SpmdProgram& worker) {
  return Cutter(worker).Run();
}

}  // namespace distir::lower
