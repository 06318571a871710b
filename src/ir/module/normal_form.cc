// Rewrites functions into the normal form that passes assume.
#include "ir/module/normal_form.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ir/leaves.h"
#include "ir/module/size_rewriter.h"

namespace distir::ir {

namespace {

/*! \brief A value of a match_cast that is to be bound first; sizes that are computed are none. */
bool IsCallOfValue(const Expr& value) { return Call::Is(value) && !PrimType::Is(value.ty()); }

// ---- names of sizes

/*! \brief Chooses the names of the sizes of a function. */
class SizeNames {
 public:
  explicit SizeNames(const Function& function) {
    for (const Var& param : function.params()) {
      // A parameter keeps its name.
      if (PrimType::Is(param.ty()) && known_.insert(param.get()).second)
        taken_.insert(param.name());
    }
    for (const Var& param : function.params()) Add(param);
    VisitBindings(function.body(), [this](const Binding& binding) {
      if (MatchCast::Is(binding)) Add(binding.var());
    });
    for (const auto& [size, name] : unnamed_) Choose(size, name);
  }

  /*! \brief New names by size; none of those that keep theirs. */
  const std::unordered_map<const ffi::Object*, std::string>& chosen() const { return chosen_; }

 private:
  /*! \brief Reads the sizes that a parameter or a match_cast defines. */
  void Add(const Var& var) {
    size_t leaf = 0;
    ForEachLeaf(var.ty(), [&](const Type& type) {
      const std::string like =
          PrintedName(var.name()) + (leaf++ == 0 ? "" : "_" + std::to_string(leaf - 1)) + "_dim";
      int dim = 0;
      MapDims(type, [&](const Expr& size) {
        if (StaticDim(size) < 0) {
          VisitVars(size, [&](const Var& each) { Add(each, like + std::to_string(dim)); });
        }
        ++dim;
        return size;
      });
    });
  }

  /*! \param like The name of a size that has none. */
  void Add(const Var& size, const std::string& like) {
    if (!known_.insert(size.get()).second) return;
    const std::string name = size.name();
    std::string printed = PrintedName(name);
    const bool has_name = std::any_of(printed.begin(), printed.end(),
                                      [](unsigned char c) { return std::isalnum(c) != 0; });
    if (!has_name) printed = like;
    if (std::isdigit(static_cast<unsigned char>(printed[0])) != 0) printed = "_" + printed;
    const bool is_kept = printed == name && taken_.insert(name).second;
    if (!is_kept) unnamed_.emplace_back(size, printed);
  }

  void Choose(const Var& size, const std::string& like) {
    std::string name = like;
    for (int number = 1; !taken_.insert(name).second; ++number)
      name = like + "_" + std::to_string(number);
    chosen_.emplace(size.get(), name);
  }

  std::unordered_set<const ffi::Object*> known_;
  // Names of TVMScript, and words of Python.
  std::unordered_set<std::string> taken_{
      "I",    "R",      "T",      "TypeVar", "True",    "False",    "None",     "and",
      "as",   "assert", "async",  "await",   "break",   "class",    "continue", "def",
      "del",  "elif",   "else",   "except",  "finally", "for",      "from",     "global",
      "if",   "import", "in",     "is",      "lambda",  "nonlocal", "not",      "or",
      "pass", "raise",  "return", "try",     "while",   "with",     "yield"};
  std::vector<std::pair<Var, std::string>> unnamed_;
  std::unordered_map<const ffi::Object*, std::string> chosen_;
};

// ---- writing

class Normalizer : public SizeRewriter {
 public:
  explicit Normalizer(const Function& function) : names_(function) { Scan(function.body()); }

  bool HasWork() const { return has_casts_ || !effects_.empty() || !names_.chosen().empty(); }

  Function Run(const Function& function) {
    const Function written = RewriteFunction(function);
    // The stated result type may know more than the body's.
    return MakeFunction(written.params(), written.body(), RewriteType(function.ret_ty()),
                        function.is_pure(), written.attrs());
  }

 private:
  bool KeepsUnchanged() const override { return true; }

  Expr ReplaceSize(const Var& size) override {
    auto chosen = names_.chosen().find(size.get());
    if (chosen == names_.chosen().end()) return Expr();
    Expr& renamed = renamed_[size.get()];
    if (!renamed.defined()) renamed = MakeVar(chosen->second, size.ty(), false);
    return renamed;
  }

  void RewriteMatchCast(const Var& var, const MatchCast& cast) override {
    Expr value = Rewrite(cast.value());
    if (IsCallOfValue(value)) {
      const bool has_effects = MayHaveEffects(Call::Cast(value));
      const bool is_dataflow = writer().is_dataflow();
      if (has_effects) writer().Begin(/*is_dataflow=*/false);
      value = Emit(var.name(), value);
      if (has_effects) writer().Begin(is_dataflow);
    }
    const Type type = RewriteType(cast.ty());
    const Var made = MakeVar(var.name(), type, StaysInBlock(var));
    writer().Add(MakeMatchCast(made, value, type));
    Replace(var, made);
  }

  void RewriteVarBinding(const Var& var, const Expr& value) override {
    const bool is_dataflow = writer().is_dataflow();
    const bool has_effects = is_dataflow && effects_.count(var.get()) > 0;
    if (!has_effects && crossing_.count(var.get()) == 0)
      return SizeRewriter::RewriteVarBinding(var, value);
    if (has_effects) writer().Begin(/*is_dataflow=*/false);
    const Expr written = Rewrite(value);
    const Type type = written.same_as(value) ? RewriteType(var.ty()) : written.ty();
    const Var made = MakeVar(var.name(), type, /*dataflow=*/false);
    writer().Add(MakeBinding(made, written));
    Replace(var, made);
    if (has_effects) writer().Begin(is_dataflow);
  }

  bool StaysInBlock(const Var& var) const {
    return DataflowVar::Is(var) && crossing_.count(var.get()) == 0;
  }

  // ---- what there is to do

  void Scan(const SeqExpr& seq) {
    for (const BindingBlock& block : seq.blocks()) {
      const bool is_dataflow = DataflowBlock::Is(block);
      std::unordered_map<const ffi::Object*, int> part_of;  // of the block, by variable
      int part = 0;
      for (const Binding& binding : block.bindings()) {
        const MatchCast* cast = MatchCast::As(binding);
        const Expr& value = cast != nullptr ? cast->value() : VarBinding::As(binding)->value();
        has_casts_ = has_casts_ || (cast != nullptr && IsCallOfValue(value));
        if (const If* branch = If::As(value)) {
          Scan(branch->true_branch());
          Scan(branch->false_branch());
        }
        const Call* call = Call::As(value);
        if (!is_dataflow) continue;
        const bool has_effects = call != nullptr && MayHaveEffects(*call);
        VisitUses(value, [&](const Var& used) {
          auto defined = part_of.find(used.get());
          if (defined != part_of.end() && (has_effects || defined->second != part))
            crossing_.insert(used.get());
        });
        if (has_effects) {
          ++part;
          if (cast == nullptr) effects_.insert(binding.var().get());
          has_casts_ = has_casts_ || cast != nullptr;
        }
        part_of.emplace(binding.var().get(), part);
      }
    }
  }

  SizeNames names_;
  std::unordered_map<const ffi::Object*, Expr> renamed_;
  bool has_casts_ = false;
  std::unordered_set<const ffi::Object*> effects_;   // variables of calls that have them
  std::unordered_set<const ffi::Object*> crossing_;  // used in another part of their block
};

}  // namespace

bool MayHaveEffects(const Call& call) {
  return ExternFunc::Is(call.op()) && !TensorType::Is(call.ty()) && !DTensorType::Is(call.ty());
}

IRModule NormalForm(const IRModule& mod) {
  return RewriteFunctions(mod, [](const Function& function) {
    Normalizer normalizer(function);
    return normalizer.HasWork() ? normalizer.Run(function) : Function();
  });
}

}  // namespace distir::ir
