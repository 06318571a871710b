#include "optimize/editable_function.h"

#include <algorithm>
#include <functional>

#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/registration.h"

namespace distir {
namespace optimize {

void VisitVarsOf(const ir::Expr& expr, const std::function<void(const ir::Expr&)>& visit) {
  if (ir::Var::Is(expr)) {
    visit(expr);
  } else if (auto call = ir::Call::Cast(expr); call.defined()) {
    for (const ir::Expr& arg : call.args()) VisitVarsOf(arg, visit);
  } else if (auto tuple = ir::Tuple::Cast(expr); tuple.defined()) {
    for (const ir::Expr& field : tuple.fields()) VisitVarsOf(field, visit);
  } else if (auto item = ir::TupleGetItem::Cast(expr); item.defined()) {
    VisitVarsOf(item.tuple(), visit);
  } else if (auto branch = ir::If::Cast(expr); branch.defined()) {
    VisitVarsOf(branch.cond(), visit);
  }
}

namespace {

ir::Expr Substitute(const ir::Expr& expr, const ir::Var& var, const ir::Expr& by);

ffi::Array<ir::Expr> SubstituteAll(const ffi::Array<ir::Expr>& exprs, const ir::Var& var,
                                   const ir::Expr& by) {
  ffi::Array<ir::Expr> result;
  for (const ir::Expr& expr : exprs) result.push_back(Substitute(expr, var, by));
  return result;
}

ir::Expr Substitute(const ir::Expr& expr, const ir::Var& var, const ir::Expr& by) {
  if (ir::Var::Is(expr)) return expr.same_as(var) ? by : expr;
  if (auto call = ir::Call::Cast(expr); call.defined()) {
    return ir::MakeCall(call.ty(), call.op(), SubstituteAll(call.args(), var, by), call.attrs(),
                        call.ty_args(), call.span());
  }
  if (auto tuple = ir::Tuple::Cast(expr); tuple.defined())
    return ir::MakeTuple(SubstituteAll(tuple.fields(), var, by));
  if (auto item = ir::TupleGetItem::Cast(expr); item.defined())
    return ir::MakeTupleGetItem(Substitute(item.tuple(), var, by), item.index());
  if (auto branch = ir::If::Cast(expr); branch.defined()) {
    return ir::MakeIf(Substitute(branch.cond(), var, by), branch.true_branch(),
                      branch.false_branch(), branch.ty());
  }
  return expr;
}

const std::vector<Line*> kNoUsers;

}  // namespace

namespace {

/*! \brief Whether a call may write to its arguments: the names of such operators say so. */
bool MayWrite(const ir::Expr& op) {
  if (ir::ExternFunc::Is(op)) return true;
  if (!ir::Op::Is(op)) return false;
  std::string name = ir::Op::Cast(op).name();
  return name.find("inplace") != std::string::npos || name.find("packed") != std::string::npos;
}

/*! \brief Whether a type has something in it that is no tensor, shape or number, as a cache is. */
bool HasObject(const ir::Type& type) {
  return ir::AnyLeaf(type, [](const ir::Type& leaf) {
    return !ir::TensorType::Is(leaf) && !ir::DTensorType::Is(leaf) && !ir::ShapeType::Is(leaf) &&
           !ir::PrimType::Is(leaf) && !ir::FuncType::Is(leaf);
  });
}

}  // namespace

bool IsPure(const ir::Expr& value) {
  auto call = ir::Call::Cast(value);
  if (!call.defined()) return !ir::If::Is(value);
  return ir::IsPureOp(call.op()) && !MayWrite(call.op());
}

bool IsBarrier(const Line& line) {
  if (line.cast.defined() || line.true_branch) return true;
  auto call = ir::Call::Cast(line.value);
  if (!call.defined()) return false;
  if (!line.block->is_dataflow && !IsPure(line.value)) return true;
  if (MayWrite(call.op()) || HasObject(call.ty())) return true;
  return std::any_of(call.args().begin(), call.args().end(),
                     [](const ir::Expr& arg) { return ir::Var::Is(arg) && HasObject(arg.ty()); });
}

EditableFunction::EditableFunction(const ir::Function& function)
    : function_(function), names_(function), params_(function.params()) {
  body_ = Read(function.body(), nullptr);
}

std::unique_ptr<Body> EditableFunction::Read(const ir::SeqExpr& seq, Line* owner) {
  auto body = std::make_unique<Body>();
  body->owner = owner;
  body->original = seq;
  for (const ir::BindingBlock& source : seq.blocks()) {
    body->blocks.emplace_back();
    Block* block = &body->blocks.back();
    block->is_dataflow = ir::DataflowBlock::Is(source);
    for (const ir::Binding& binding : source.bindings()) {
      auto line = std::make_unique<Line>();
      line->var = binding.var();
      line->original = binding;
      if (auto cast = ir::MatchCast::Cast(binding); cast.defined()) {
        line->value = cast.value();
        line->cast = cast.ty();
      } else {
        line->value = ir::VarBinding::Cast(binding).value();
      }
      line->block = block;
      line->body = body.get();
      definitions_[line->var.get()] = line.get();
      if (auto branch = ir::If::Cast(line->value); branch.defined()) {
        line->true_branch = Read(branch.true_branch(), line.get());
        line->false_branch = Read(branch.false_branch(), line.get());
      }
      AddUses(line.get());
      block->lines.push_back(std::move(line));
      block->lines.back()->place = std::prev(block->lines.end());
    }
  }
  body->result.value = seq.body();
  body->result.body = body.get();
  AddUses(&body->result);
  return body;
}

ir::Function EditableFunction::Finish() {
  ir::SeqExpr seq = Write(body_.get());
  if (seq.same_as(function_.body()) && params_.same_as(function_.params())) return function_;
  return ir::MakeFunction(params_, seq, function_.ret_ty(), function_.is_pure(), function_.attrs());
}

ir::SeqExpr EditableFunction::Write(Body* body) {
  if (!body->changed) return body->original;
  ffi::Array<ir::BindingBlock> blocks;
  for (Block& block : body->blocks) {
    ffi::Array<ir::Binding> bindings;
    for (const auto& line : block.lines) {
      ir::Expr value = line->value;
      if (line->true_branch && (line->true_branch->changed || line->false_branch->changed)) {
        value = ir::MakeIf(ir::If::Cast(value).cond(), Write(line->true_branch.get()),
                           Write(line->false_branch.get()), value.ty());
        line->original = ir::Binding();
      }
      if (line->original.defined()) {
        bindings.push_back(line->original);
      } else if (line->cast.defined()) {
        bindings.push_back(ir::MakeMatchCast(line->var, value, line->cast));
      } else {
        bindings.push_back(ir::MakeBinding(line->var, value));
      }
    }
    if (!bindings.empty()) blocks.push_back(ir::MakeBlock(bindings, block.is_dataflow));
  }
  return ir::MakeSeq(blocks, body->result.value, body->original.ty());
}

std::vector<Line*> EditableFunction::Lines() {
  std::vector<Line*> lines;
  Collect(body_.get(), &lines);
  return lines;
}

void EditableFunction::Collect(Body* body, std::vector<Line*>* lines) {
  for (Block& block : body->blocks) {
    for (const auto& line : block.lines) {
      lines->push_back(line.get());
      if (!line->true_branch) continue;
      Collect(line->true_branch.get(), lines);
      Collect(line->false_branch.get(), lines);
    }
  }
  lines->push_back(&body->result);
}

Line* EditableFunction::DefinitionOf(const ir::Expr& var) const {
  auto found = definitions_.find(var.get());
  return found == definitions_.end() ? nullptr : found->second;
}

const std::vector<Line*>& EditableFunction::UsersOf(const ir::Expr& var) const {
  auto found = users_.find(var.get());
  return found == users_.end() ? kNoUsers : found->second;
}

int EditableFunction::NumUses(const ir::Expr& var) const {
  return static_cast<int>(UsersOf(var).size());
}

Line* EditableFunction::OnlyUserOf(const ir::Expr& var) const {
  const std::vector<Line*>& users = UsersOf(var);
  return users.size() == 1 ? users[0] : nullptr;
}

bool EditableFunction::IsVisible(const ir::Expr& expr, const Line* at) const {
  bool visible = true;
  VisitVarsOf(expr, [&](const ir::Expr& var) {
    const Line* definition = DefinitionOf(var);
    if (definition == nullptr || definition->block == at->block) return;
    // The line lies in the block, or in a branch inside it.
    for (const Line* line = at; line != nullptr; line = line->body->owner) {
      if (line->block == definition->block) return;
      if (line->body == definition->body && !ir::DataflowVar::Is(var)) return;
    }
    visible = false;
  });
  return visible;
}

void EditableFunction::AddUses(Line* line) {
  VisitVarsOf(line->value, [&](const ir::Expr& var) { users_[var.get()].push_back(line); });
}

void EditableFunction::RemoveUses(Line* line) {
  VisitVarsOf(line->value, [&](const ir::Expr& var) {
    std::vector<Line*>& users = users_[var.get()];
    users.erase(std::find(users.begin(), users.end(), line));
  });
}

void EditableFunction::MarkChanged(Body* body) {
  for (; body != nullptr && !body->changed;
       body = body->owner == nullptr ? nullptr : body->owner->body)
    body->changed = true;
}

void EditableFunction::SetValue(Line* line, const ir::Expr& value) {
  RemoveUses(line);
  line->value = value;
  line->original = ir::Binding();
  AddUses(line);
  MarkChanged(line->body);
}

ir::Var EditableFunction::Insert(Block* block, Body* body,
                                 std::list<std::unique_ptr<Line>>::iterator before,
                                 const std::string& like, const ir::Expr& value) {
  auto line = std::make_unique<Line>();
  line->var = ir::MakeVar(names_.Fresh(like), value.ty(), block->is_dataflow);
  line->value = value;
  line->block = block;
  line->body = body;
  Line* raw = line.get();
  raw->place = block->lines.insert(before, std::move(line));
  definitions_[raw->var.get()] = raw;
  AddUses(raw);
  MarkChanged(body);
  return raw->var;
}

ir::Var EditableFunction::InsertBefore(Line* at, const std::string& like, const ir::Expr& value) {
  return Insert(at->block, at->body, at->place, like, value);
}

ir::Var EditableFunction::InsertAfter(Line* at, const std::string& like, const ir::Expr& value) {
  return Insert(at->block, at->body, std::next(at->place), like, value);
}

void EditableFunction::ReplaceUses(const ir::Var& var, const ir::Expr& by) {
  auto found = users_.find(var.get());
  if (found == users_.end()) return;
  std::vector<Line*> users = std::move(found->second);
  users_.erase(found);
  for (Line* user : users) {
    user->value = Substitute(user->value, var, by);
    user->original = ir::Binding();
    MarkChanged(user->body);
    VisitVarsOf(by, [&](const ir::Expr& used) { users_[used.get()].push_back(user); });
  }
}

void EditableFunction::Alias(Line* line, const ir::Expr& value) {
  // A variable of a dataflow block must not be seen behind the block.
  bool leaves_block = line->block->is_dataflow && !ir::DataflowVar::Is(line->var);
  if (leaves_block || !ir::Var::Is(value)) return SetValue(line, value);
  ReplaceUses(line->var, value);
  DropUnused(line);
}

void EditableFunction::DropUnused(Line* line) {
  std::vector<Line*> candidates{line};
  while (!candidates.empty()) {
    Line* dead = candidates.back();
    candidates.pop_back();
    if (dead == nullptr || dead->dropped || !dead->var.defined() || NumUses(dead->var) > 0 ||
        dead->cast.defined() || !IsPure(dead->value))
      continue;
    VisitVarsOf(dead->value, [&](const ir::Expr& var) { candidates.push_back(DefinitionOf(var)); });
    RemoveUses(dead);
    definitions_.erase(dead->var.get());
    MarkChanged(dead->body);
    dead->dropped = true;
    dropped_.splice(dropped_.end(), dead->block->lines, dead->place);
  }
}

ir::Var EditableFunction::RetypeParam(int index, const ir::Type& type) {
  ir::Var old = params_[index];
  ir::Var fresh = ir::MakeVar(old.name(), type, false);
  ReplaceUses(old, fresh);
  params_.Set(index, fresh);
  MarkChanged(body_.get());
  return fresh;
}

void EditableFunction::Reorder(Block* block, const std::vector<Line*>& order) {
  bool same = std::equal(order.begin(), order.end(), block->lines.begin(), block->lines.end(),
                         [](Line* a, const std::unique_ptr<Line>& b) { return a == b.get(); });
  if (same) return;
  for (Line* line : order) block->lines.splice(block->lines.end(), block->lines, line->place);
  MarkChanged(order.front()->body);
}

}  // namespace optimize
}  // namespace distir
