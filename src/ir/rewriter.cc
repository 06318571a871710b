// Rewrites functions binding by binding; the base of the rewriting passes.
#include "ir/rewriter.h"

#include <algorithm>
#include <optional>

#include "ir/build.h"
#include "ir/module/numbered.h"

namespace distir::ir {

namespace {

/*! \brief Maps an array; returns it unchanged if no element changes. */
template <typename T, typename Map>
ffi::Array<T> MapAll(const ffi::Array<T>& all, const Map& map) {
  std::optional<ffi::Array<T>> mapped;  // none: no element is another so far
  for (size_t i = 0; i < all.size(); ++i) {
    T element = map(all[i]);
    if (!mapped && element.same_as(all[i])) continue;
    if (!mapped) {
      mapped.emplace();
      mapped->reserve(all.size());
      mapped->insert(mapped->end(), all.begin(), all.begin() + i);
    }
    mapped->push_back(std::move(element));
  }
  return mapped ? *std::move(mapped) : all;
}

bool IsBinding(const Binding& binding, const Var& var, const Expr& value) {
  const VarBinding* bound = VarBinding::As(binding);
  return bound != nullptr && bound->var().same_as(var) && bound->value().same_as(value);
}

}  // namespace

void BlockWriter::Begin(bool is_dataflow) {
  End();
  is_dataflow_ = is_dataflow;
}

void BlockWriter::End() {
  if (!bindings_.empty()) {
    // TVM's normal form has no two plain blocks in a row.
    if (!is_dataflow_ && !blocks_.empty() && !DataflowBlock::Is(blocks_.back())) {
      ffi::Array<Binding> joined = blocks_.back().bindings();
      joined.insert(joined.end(), bindings_.begin(), bindings_.end());
      bindings_ = joined;
      blocks_.pop_back();
    }
    blocks_.push_back(MakeBlock(bindings_, is_dataflow_));
  }
  bindings_ = {};
  is_dataflow_ = false;
}

Function FunctionRewriter::RewriteFunction(const Function& function) {
  names_ = Names(function);
  ffi::Array<Var> params;
  for (const Var& param : function.params()) {
    Var fresh = RewriteParam(param);
    Replace(param, fresh);
    if (fresh.defined()) params.push_back(fresh);
  }
  SeqExpr body = RewriteSeq(function.body(), Var());
  Node attrs = RewriteAttrs(function.attrs());
  if (!made_.empty()) {
    using Made = ffi::Map<ffi::String, ffi::Any>;
    Made made = GetAttr(attrs, kMadeAttr).try_cast<Made>().value_or(Made());
    for (const auto& [cause, names] : made_) {
      std::vector<std::string> all;
      if (made.count(cause) > 0) all = UnfoldNames(made.at(cause));
      all.insert(all.end(), names.begin(), names.end());
      made.Set(cause, FoldNames(all));
    }
    attrs = WithAttr(attrs, kMadeAttr, made);
  }
  return MakeFunction(params, body, body.ty(), RewritePurity(function.is_pure()), attrs);
}

SeqExpr FunctionRewriter::RewriteSeq(const SeqExpr& seq, const Var& branch_of) {
  BlockWriter* outer = writer_;
  BlockWriter writer;
  writer_ = &writer;
  EnterScope();
  for (const BindingBlock& block : seq.blocks()) {
    bool is_dataflow = KeepsDataflow() && DataflowBlock::Is(block);
    writer.Begin(is_dataflow);
    if (is_dataflow) EnterScope();
    for (const Binding& binding : block.bindings()) {
      cause_.clear();
      emitted_.clear();
      current_ = binding;
      if (const MatchCast* cast = MatchCast::As(binding)) {
        RewriteMatchCast(binding.var(), *cast);
      } else {
        RewriteVarBinding(binding.var(), VarBinding::As(binding)->value());
      }
      if (cause_.empty()) continue;
      for (const Var& made : emitted_)
        made_[cause_].push_back(computed_ + ": " + std::string(made.name()));
    }
    if (is_dataflow) LeaveScope();
    writer.End();
  }
  cause_.clear();
  emitted_.clear();
  current_ = Binding();
  Expr value = RewriteSeqValue(seq.body(), branch_of);
  LeaveScope();
  writer.End();
  writer_ = outer;
  return MakeSeq(writer.blocks(), value, value.ty());
}

void FunctionRewriter::RewriteVarBinding(const Var& var, const Expr& value) {
  if (const If* branch = If::As(value)) {
    Expr cond = Rewrite(branch->cond());
    SeqExpr true_branch = RewriteSeq(branch->true_branch(), var);
    SeqExpr false_branch = RewriteSeq(branch->false_branch(), var);
    Bind(var, MakeIf(cond, true_branch, false_branch, true_branch.ty()));
    return;
  }
  Expr rewritten = Rewrite(value);
  if (rewritten.same_as(value)) {
    Bind(var, value, var.ty());
  } else {
    Bind(var, rewritten);
  }
}

void FunctionRewriter::RewriteMatchCast(const Var& var, const MatchCast& cast) {
  Type type = RewriteType(cast.ty());
  Var fresh = FreshVar(var, type);
  writer_->Add(MakeMatchCast(fresh, Rewrite(cast.value()), type));
  Replace(var, fresh);
}

Expr FunctionRewriter::RewriteSeqValue(const Expr& value, const Var&) { return Rewrite(value); }

Expr FunctionRewriter::Rewrite(const Expr& expr) {
  if (Var::Is(expr)) {
    const Expr* known = vars_.Find(expr.get());
    return known == nullptr ? expr : *known;
  }
  if (const Call* call = Call::As(expr)) return RewriteCall(*call);
  if (const Constant* constant = Constant::As(expr)) return RewriteConstant(*constant);
  if (const Tuple* tuple = Tuple::As(expr)) {
    const ffi::Array<Expr> fields = RewriteAll(tuple->fields());
    return Keeps(fields, tuple->fields()) ? expr : MakeTuple(fields);
  }
  if (const TupleGetItem* item = TupleGetItem::As(expr)) {
    Expr tuple = Rewrite(item->tuple());
    if (const Tuple* fields = Tuple::As(tuple)) return fields->fields()[item->index()];
    if (KeepsUnchanged() && tuple.same_as(item->tuple())) return expr;
    return MakeTupleGetItem(tuple, item->index());
  }
  return RewriteLeaf(expr);
}

Expr FunctionRewriter::RewriteCall(const Call& call) {
  const ffi::Array<Type> ty_args =
      MapAll(call.ty_args(), [this](const Type& each) { return RewriteType(each); });
  const Expr op = Var::Is(call.op()) ? Rewrite(call.op()) : call.op();
  const ffi::Array<Expr> args = RewriteAll(call.args());
  const Type type = RewriteType(call.ty());
  const bool is_kept = type.same_as(call.ty()) && op.same_as(call.op()) &&
                       Keeps(args, call.args()) && Keeps(ty_args, call.ty_args());
  return is_kept ? call : MakeCall(type, op, args, call.attrs(), ty_args, call.span());
}

ffi::Array<Expr> FunctionRewriter::RewriteAll(const NodeArray<Expr>& exprs) {
  return MapAll(exprs, [this](const Expr& expr) { return Rewrite(expr); });
}

Var FunctionRewriter::FreshVar(const Var& var, const Type& type) {
  const ffi::String name = NameFor(var);
  const bool is_dataflow = KeepsDataflow() && DataflowVar::Is(var);
  const bool is_kept = KeepsUnchanged() && type.same_as(var.ty()) && name == var.name() &&
                       is_dataflow == DataflowVar::Is(var);
  return is_kept ? var : MakeVar(name, type, is_dataflow);
}

Var FunctionRewriter::Bind(const Var& var, const Expr& value, const Type& type) {
  Var fresh = FreshVar(var, type);
  if (fresh.same_as(var) && IsBinding(current_, var, value)) {
    writer_->Add(current_);
  } else {
    writer_->Add(MakeBinding(fresh, value));
  }
  Replace(var, fresh);
  return fresh;
}

Var FunctionRewriter::Emit(const ffi::String& like, const Expr& value) {
  Var var = MakeVar(names_.Fresh(like), value.ty(), writer_->is_dataflow());
  writer_->Add(MakeBinding(var, value));
  emitted_.push_back(var);
  return var;
}

void FunctionRewriter::Alias(const Var& var, const Expr& value) {
  // A variable of a dataflow block must not be seen behind the block.
  bool leaves_block = !DataflowVar::Is(var) && writer_->is_dataflow();
  if (Var::Is(value) && !leaves_block) {
    // The value that replaces the variable takes its name.
    auto made = std::find_if(emitted_.begin(), emitted_.end(),
                             [&value](const Var& each) { return each.same_as(value); });
    if (made != emitted_.end()) {
      SetName(*made, NameFor(var));
      emitted_.erase(made);
    }
    Replace(var, value);
  } else {
    Bind(var, value);
  }
}

IRModule RewriteFunctions(const IRModule& mod,
                          const std::function<Function(const Function&)>& rewrite) {
  FunctionMap functions = mod.functions();
  bool any = false;
  for (const auto& [gv, base] : OrderedFunctions(mod)) {
    Function function = Function::Cast(base);
    Function rewritten = function.defined() ? rewrite(function) : Function();
    if (!rewritten.defined()) continue;
    functions.Set(gv, rewritten);
    any = true;
  }
  return any ? MakeModule(functions, mod.attrs(), mod.global_infos()) : mod;
}

void VisitBindings(const SeqExpr& seq, const std::function<void(const Binding&)>& visit) {
  for (const BindingBlock& block : seq.blocks()) {
    for (const Binding& binding : block.bindings()) {
      visit(binding);
      const VarBinding* bound = VarBinding::As(binding);
      if (bound == nullptr) continue;
      if (const If* branch = If::As(bound->value())) {
        VisitBindings(branch->true_branch(), visit);
        VisitBindings(branch->false_branch(), visit);
      }
    }
  }
}

Call BoundCall(const Binding& binding) {
  const VarBinding* bound = VarBinding::As(binding);
  return bound != nullptr ? Call::Cast(bound->value()) : Call();
}

namespace {

const Expr& ValueOf(const Binding& binding) {
  const VarBinding* bound = VarBinding::As(binding);
  return bound != nullptr ? bound->value() : MatchCast::As(binding)->value();
}

void VisitUsesInSeq(const SeqExpr& seq, const std::function<void(const Var&)>& visit) {
  for (const BindingBlock& block : seq.blocks()) {
    for (const Binding& binding : block.bindings()) {
      VisitUses(ValueOf(binding), visit);
    }
  }
  VisitUses(seq.body(), visit);
}

}  // namespace

void VisitUses(const Expr& expr, const std::function<void(const Var&)>& visit) {
  if (Var::Is(expr)) {
    visit(*Var::As(expr));
  } else if (const Call* call = Call::As(expr)) {
    if (Var::Is(call->op())) visit(*Var::As(call->op()));
    for (const Expr& arg : call->args()) VisitUses(arg, visit);
  } else if (const Tuple* tuple = Tuple::As(expr)) {
    for (const Expr& field : tuple->fields()) VisitUses(field, visit);
  } else if (const TupleGetItem* item = TupleGetItem::As(expr)) {
    VisitUses(item->tuple(), visit);
  } else if (const If* branch = If::As(expr)) {
    VisitUses(branch->cond(), visit);
    VisitUsesInSeq(branch->true_branch(), visit);
    VisitUsesInSeq(branch->false_branch(), visit);
  }
}

namespace {

using Uses = std::unordered_map<const ffi::Object*, int>;

/*! \brief Counts what an expression uses itself; of an If, its condition and its branches' values.
 */
void CountIn(const Expr& expr, Uses* uses) {
  if (Var::Is(expr)) {
    ++(*uses)[expr.get()];
  } else if (const Call* call = Call::As(expr)) {
    if (Var::Is(call->op())) ++(*uses)[call->op().get()];
    for (const Expr& arg : call->args()) CountIn(arg, uses);
  } else if (const Tuple* tuple = Tuple::As(expr)) {
    for (const Expr& field : tuple->fields()) CountIn(field, uses);
  } else if (const TupleGetItem* item = TupleGetItem::As(expr)) {
    CountIn(item->tuple(), uses);
  } else if (const If* branch = If::As(expr)) {
    CountIn(branch->cond(), uses);
    CountIn(branch->true_branch().body(), uses);
    CountIn(branch->false_branch().body(), uses);
  }
}

}  // namespace

std::unordered_map<const ffi::Object*, int> CountUses(const Function& function) {
  Uses uses;
  VisitBindings(function.body(),
                [&uses](const Binding& binding) { CountIn(ValueOf(binding), &uses); });
  CountIn(function.body().body(), &uses);
  return uses;
}

}  // namespace distir::ir
