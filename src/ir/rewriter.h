/*!
 * \file ir/rewriter.h
 * \brief Base of passes that rewrite functions binding by binding.
 *
 * A pass overrides what it changes; everything else is carried over with variables replaced.
 * Variables keep their names, further ones get names of their own (ir/module/names.h), blocks keep
 * their kinds. Input and output are in A-normal form, and every expression that a pass makes is
 * typed by it. Example, a pass that drops every relu:
 * \code
 *   void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
 *     ir::Call call = ir::Call::Cast(value);
 *     const bool is_relu = call.defined() && ir::IsOp(call.op(), "relax.nn.relu");
 *     if (is_relu) return Alias(var, Rewrite(call.args()[0]));
 *     FunctionRewriter::RewriteVarBinding(var, value);
 *   }
 * \endcode
 */
#ifndef DISTIR_IR_REWRITER_H_
#define DISTIR_IR_REWRITER_H_

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/module/names.h"
#include "ir/node.h"
#include "support/pointer_map.h"

namespace distir::ir {

/*! \brief Collects bindings into blocks. */
class BlockWriter {
 public:
  void Begin(bool is_dataflow);
  void Add(const Binding& binding) {
    bindings_.push_back(binding);
    ++num_bindings_;
  }
  void End();
  bool is_dataflow() const { return is_dataflow_; }
  /*! \brief The number of bindings added so far, of all blocks. */
  size_t num_bindings() const { return num_bindings_; }
  const NodeArray<BindingBlock>& blocks() const { return blocks_; }

 private:
  NodeArray<BindingBlock> blocks_;
  ffi::Array<Binding> bindings_;
  size_t num_bindings_ = 0;
  bool is_dataflow_ = false;
};

/*!
 * \brief The function attribute that says which variables a pass made in computing another, and of
 * which operator: {"DecomposeSharded relax.nn.softmax": ["lv3: lv3_1", "lv3: lv3_2"]}, folded as
 * names are (ir/module/numbered.h). Read by `explain`.
 */
constexpr const char* kMadeAttr = "distir.made";

class FunctionRewriter {
 public:
  virtual ~FunctionRewriter() = default;
  Function RewriteFunction(const Function& function);

 protected:
  // ---- what a pass overrides

  /*! \brief The new parameter; the same variable where nothing changes, null to drop it. */
  virtual Var RewriteParam(const Var& param) { return param; }
  virtual void RewriteVarBinding(const Var& var, const Expr& value);
  virtual void RewriteMatchCast(const Var& var, const MatchCast& cast);
  /*! \brief The value of a sequence; may emit bindings (in a block behind the others). `branch_of`
   * is the variable that an If is bound to, or null for a function's body. */
  virtual Expr RewriteSeqValue(const Expr& value, const Var& branch_of);
  virtual Expr RewriteConstant(const Constant& constant) { return constant; }
  /*! \brief Anything else: shapes, integers, strings. */
  virtual Expr RewriteLeaf(const Expr& leaf) { return leaf; }
  virtual Type RewriteType(const Type& type) { return type; }
  virtual Node RewriteAttrs(const Node& attrs) { return attrs; }
  virtual bool RewritePurity(bool is_pure) { return is_pure; }
  /*! \brief An expression with its variables replaced. */
  virtual Expr Rewrite(const Expr& expr);
  /*! \brief True if bindings stay in dataflow blocks; otherwise all blocks and variables become
   * plain ones. */
  virtual bool KeepsDataflow() const { return true; }
  /*! \brief True if unchanged parts keep their objects: a variable whose name, kind and type
   * stay, a call whose arguments stay, and their binding. So a pass that changes little writes
   * little. Not for a pass whose input stays in the module beside its output: a variable is bound
   * once. */
  virtual bool KeepsUnchanged() const { return false; }
  /*! \brief Called when the variables emitted since the matching EnterScope go out of scope. */
  virtual void EnterScope() {}
  virtual void LeaveScope() {}

  // ---- what a pass uses

  ffi::Array<Expr> RewriteAll(const NodeArray<Expr>& exprs);
  /*! \brief The name of a variable that stands for one of the function. */
  virtual ffi::String NameFor(const Var& var) { return var.name(); }
  /*! \brief A name that no variable of the function has. */
  ffi::String FreshName(const ffi::String& like) { return names_.Fresh(like); }
  /*! \brief Binds a fresh variable of the same name and kind and lets `var` stand for it. */
  Var Bind(const Var& var, const Expr& value, const Type& type);
  Var Bind(const Var& var, const Expr& value) { return Bind(var, value, value.ty()); }
  /*! \brief Binds a further variable, visible in the current block; its name is made from `like`.
   */
  Var Emit(const ffi::String& like, const Expr& value);
  /*! \brief Lets `var` stand for `value`, without a binding where scoping allows. */
  void Alias(const Var& var, const Expr& value);
  void Replace(const Var& var, const Expr& value) { vars_[var.get()] = value; }
  /*! \brief Until the next binding, the function attribute kMadeAttr says that what Emit binds was
   * made by `pass` in computing `var`, by the operator `op`. */
  void Credit(const char* pass, const std::string& op, const Var& var) {
    cause_ = std::string(pass) + " " + op;
    computed_ = var.name();
  }
  /*! \brief The sequence; a dataflow block's emitted variables end with it. */
  SeqExpr RewriteSeq(const SeqExpr& seq, const Var& branch_of);
  BlockWriter& writer() { return *writer_; }

 private:
  Expr RewriteCall(const Call& call);
  /*! \brief True if the rewritten array equals the given one, and unchanged parts are kept. */
  template <typename T>
  bool Keeps(const ffi::Array<T>& rewritten, const ffi::Array<T>& given) const {
    return KeepsUnchanged() && rewritten.same_as(given);
  }
  Var FreshVar(const Var& var, const Type& type);

  PointerMap<Expr> vars_;
  Names names_;                                           // of the function
  std::string cause_;                                     // "pass op"
  std::string computed_;                                  // by that, the name of a variable
  std::vector<Var> emitted_;                              // in rewriting the current binding
  std::map<std::string, std::vector<std::string>> made_;  // "computed: name", by cause
  BlockWriter* writer_ = nullptr;
  Binding current_;  // of the function, being rewritten; null for the value of a sequence
};

/*!
 * \brief The module with other Relax functions; the same module if nothing changes.
 * \param rewrite Gives the function to put in place of one, or null to keep it.
 */
IRModule RewriteFunctions(const IRModule& mod,
                          const std::function<Function(const Function&)>& rewrite);

/*!
 * \brief Calls `visit` for every binding in program order; an If comes before the bindings of its
 * branches. The values of sequences are not bindings.
 *
 *     size_t calls = 0;
 *     VisitBindings(function.body(), [&](const Binding& b) { calls += BoundCall(b).defined(); });
 */
void VisitBindings(const SeqExpr& seq, const std::function<void(const Binding&)>& visit);
/*! \brief The call that a binding gives a name to; null where it binds anything else. */
Call BoundCall(const Binding& binding);

/*! \brief Calls `visit` for every variable that an expression uses, branches included. */
void VisitUses(const Expr& expr, const std::function<void(const Var&)>& visit);

/*! \brief Counts the uses of each variable in a function. */
std::unordered_map<const ffi::Object*, int> CountUses(const Function& function);

}  // namespace distir::ir
#endif  // DISTIR_IR_REWRITER_H_
