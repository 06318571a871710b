// Holds a function as lists of bindings that optimisations edit in place.
#include "optimize/program/editable_function.h"

#include <algorithm>
#include <functional>

#include "ir/build.h"
#include "ir/leaves.h"
#include "ir/tvm/registration.h"

namespace distir::optimize {

void VisitVarsOf(const ir::Expr& expr, const std::function<void(const ir::Expr&)>& visit) {
  if (ir::Var::Is(expr)) {
    visit(expr);
  } else if (const ir::Call* call = ir::Call::As(expr)) {
    for (const ir::Expr& arg : call->args()) VisitVarsOf(arg, visit);
  } else if (const ir::Tuple* tuple = ir::Tuple::As(expr)) {
    for (const ir::Expr& field : tuple->fields()) VisitVarsOf(field, visit);
  } else if (const ir::TupleGetItem* item = ir::TupleGetItem::As(expr)) {
    VisitVarsOf(item->tuple(), visit);
  } else if (const ir::If* branch = ir::If::As(expr)) {
    VisitVarsOf(branch->cond(), visit);
  }
}

namespace {

ir::Expr Substitute(const ir::Expr& expr, const ir::Var& var, const ir::Expr& by);

ffi::Array<ir::Expr> SubstituteAll(const ir::NodeArray<ir::Expr>& exprs, const ir::Var& var,
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

const std::vector<EditableBinding*> kNoUsers;

}  // namespace

namespace {

/*! \brief True if a call may write to its arguments: the names of such operators say so. */
bool MayWrite(const ir::Expr& op) {
  if (ir::ExternFunc::Is(op)) return true;
  if (!ir::Op::Is(op)) return false;
  // Operators are unique objects, never freed.
  static thread_local PointerMap<bool> known;
  if (const bool* writes = known.Find(op.get())) return *writes;
  const std::string name = ir::Op::Cast(op).name();
  return known[op.get()] =
             name.find("inplace") != std::string::npos || name.find("packed") != std::string::npos;
}

/*! \brief True if a type has something in it that is no tensor, shape or number, as a cache is. */
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

bool IsBarrier(const EditableBinding& binding) {
  if (binding.cast.defined() || binding.true_branch) return true;
  auto call = ir::Call::Cast(binding.value);
  if (!call.defined()) return false;
  if (!binding.block->is_dataflow && !IsPure(binding.value)) return true;
  if (MayWrite(call.op()) || HasObject(call.ty())) return true;
  return std::any_of(call.args().begin(), call.args().end(),
                     [](const ir::Expr& arg) { return ir::Var::Is(arg) && HasObject(arg.ty()); });
}

EditableFunction::EditableFunction(const ir::Function& function)
    : function_(function), names_(function), params_(function.params()) {
  body_ = Read(function.body(), nullptr);
}

std::unique_ptr<Body> EditableFunction::Read(const ir::SeqExpr& seq, EditableBinding* owner) {
  auto body = std::make_unique<Body>();
  body->owner = owner;
  body->original = seq;
  for (const ir::BindingBlock& source : seq.blocks()) {
    body->blocks.emplace_back();
    Block* block = &body->blocks.back();
    block->is_dataflow = ir::DataflowBlock::Is(source);
    for (const ir::Binding& read : source.bindings()) {
      auto binding = std::make_unique<EditableBinding>();
      binding->var = read.var();
      binding->original = read;
      if (auto cast = ir::MatchCast::Cast(read); cast.defined()) {
        binding->value = cast.value();
        binding->cast = cast.ty();
      } else {
        binding->value = ir::VarBinding::Cast(read).value();
      }
      binding->block = block;
      binding->body = body.get();
      definitions_[binding->var.get()] = binding.get();
      if (auto branch = ir::If::Cast(binding->value); branch.defined()) {
        binding->true_branch = Read(branch.true_branch(), binding.get());
        binding->false_branch = Read(branch.false_branch(), binding.get());
      }
      AddUses(binding.get());
      block->bindings.push_back(std::move(binding));
      block->bindings.back()->place = std::prev(block->bindings.end());
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
    ffi::Array<ir::Binding> written;
    for (const auto& binding : block.bindings) {
      ir::Expr value = binding->value;
      if (binding->true_branch &&
          (binding->true_branch->changed || binding->false_branch->changed)) {
        value = ir::MakeIf(ir::If::Cast(value).cond(), Write(binding->true_branch.get()),
                           Write(binding->false_branch.get()), value.ty());
        binding->original = ir::Binding();
      }
      if (binding->original.defined()) {
        written.push_back(binding->original);
      } else if (binding->cast.defined()) {
        written.push_back(ir::MakeMatchCast(binding->var, value, binding->cast));
      } else {
        written.push_back(ir::MakeBinding(binding->var, value));
      }
    }
    if (!written.empty()) blocks.push_back(ir::MakeBlock(written, block.is_dataflow));
  }
  return ir::MakeSeq(blocks, body->result.value, body->original.ty());
}

std::vector<EditableBinding*> EditableFunction::Bindings() {
  std::vector<EditableBinding*> bindings;
  Collect(body_.get(), &bindings);
  return bindings;
}

void EditableFunction::Collect(Body* body, std::vector<EditableBinding*>* bindings) {
  for (Block& block : body->blocks) {
    for (const auto& binding : block.bindings) {
      bindings->push_back(binding.get());
      if (!binding->true_branch) continue;
      Collect(binding->true_branch.get(), bindings);
      Collect(binding->false_branch.get(), bindings);
    }
  }
  bindings->push_back(&body->result);
}

EditableBinding* EditableFunction::DefinitionOf(const ir::Expr& var) const {
  EditableBinding* const* found = definitions_.Find(var.get());
  return found == nullptr ? nullptr : *found;
}

const std::vector<EditableBinding*>& EditableFunction::UsersOf(const ir::Expr& var) const {
  auto found = users_.find(var.get());
  return found == users_.end() ? kNoUsers : found->second;
}

int EditableFunction::NumUses(const ir::Expr& var) const {
  return static_cast<int>(UsersOf(var).size());
}

EditableBinding* EditableFunction::OnlyUserOf(const ir::Expr& var) const {
  const std::vector<EditableBinding*>& users = UsersOf(var);
  return users.size() == 1 ? users[0] : nullptr;
}

bool EditableFunction::IsVisible(const ir::Expr& expr, const EditableBinding* at) const {
  bool visible = true;
  VisitVarsOf(expr, [&](const ir::Expr& var) {
    const EditableBinding* definition = DefinitionOf(var);
    if (definition == nullptr || definition->block == at->block) return;
    // The binding lies in the block, or in a branch inside it.
    for (const EditableBinding* binding = at; binding != nullptr; binding = binding->body->owner) {
      if (binding->block == definition->block) return;
      if (binding->body == definition->body && !ir::DataflowVar::Is(var)) return;
    }
    visible = false;
  });
  return visible;
}

void EditableFunction::AddUses(EditableBinding* binding) {
  VisitVarsOf(binding->value, [&](const ir::Expr& var) { users_[var.get()].push_back(binding); });
}

void EditableFunction::RemoveUses(EditableBinding* binding) {
  VisitVarsOf(binding->value, [&](const ir::Expr& var) {
    std::vector<EditableBinding*>& users = users_[var.get()];
    users.erase(std::find(users.begin(), users.end(), binding));
  });
}

void EditableFunction::MarkChanged(Body* body) {
  for (; body != nullptr && !body->changed;
       body = body->owner == nullptr ? nullptr : body->owner->body)
    body->changed = true;
}

void EditableFunction::SetValue(EditableBinding* binding, const ir::Expr& value) {
  RemoveUses(binding);
  binding->value = value;
  binding->original = ir::Binding();
  AddUses(binding);
  MarkChanged(binding->body);
}

ir::Var EditableFunction::Insert(Block* block, Body* body,
                                 std::list<std::unique_ptr<EditableBinding>>::iterator before,
                                 const std::string& like, const ir::Expr& value) {
  auto binding = std::make_unique<EditableBinding>();
  binding->var = ir::MakeVar(names_.Fresh(like), value.ty(), block->is_dataflow);
  binding->value = value;
  binding->block = block;
  binding->body = body;
  EditableBinding* raw = binding.get();
  raw->place = block->bindings.insert(before, std::move(binding));
  definitions_[raw->var.get()] = raw;
  AddUses(raw);
  MarkChanged(body);
  return raw->var;
}

ir::Var EditableFunction::InsertBefore(EditableBinding* at, const std::string& like,
                                       const ir::Expr& value) {
  return Insert(at->block, at->body, at->place, like, value);
}

void EditableFunction::ReplaceUses(const ir::Var& var, const ir::Expr& by) {
  auto found = users_.find(var.get());
  if (found == users_.end()) return;
  std::vector<EditableBinding*> users = std::move(found->second);
  users_.erase(found);
  for (EditableBinding* user : users) {
    user->value = Substitute(user->value, var, by);
    user->original = ir::Binding();
    MarkChanged(user->body);
    VisitVarsOf(by, [&](const ir::Expr& used) { users_[used.get()].push_back(user); });
  }
}

void EditableFunction::Alias(EditableBinding* binding, const ir::Expr& value) {
  // A variable of a dataflow block must not be seen behind the block.
  bool leaves_block = binding->block->is_dataflow && !ir::DataflowVar::Is(binding->var);
  if (leaves_block || !ir::Var::Is(value)) return SetValue(binding, value);
  ReplaceUses(binding->var, value);
  DropUnused(binding);
}

void EditableFunction::DropUnused(EditableBinding* binding) {
  std::vector<EditableBinding*> candidates{binding};
  while (!candidates.empty()) {
    EditableBinding* dead = candidates.back();
    candidates.pop_back();
    if (dead == nullptr || dead->dropped || !dead->var.defined() || NumUses(dead->var) > 0 ||
        dead->cast.defined() || !IsPure(dead->value))
      continue;
    VisitVarsOf(dead->value, [&](const ir::Expr& var) { candidates.push_back(DefinitionOf(var)); });
    RemoveUses(dead);
    definitions_[dead->var.get()] = nullptr;
    MarkChanged(dead->body);
    dead->dropped = true;
    dropped_.splice(dropped_.end(), dead->block->bindings, dead->place);
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

void EditableFunction::Reorder(Block* block, const std::vector<EditableBinding*>& order) {
  bool same = std::equal(
      order.begin(), order.end(), block->bindings.begin(), block->bindings.end(),
      [](EditableBinding* a, const std::unique_ptr<EditableBinding>& b) { return a == b.get(); });
  if (same) return;
  for (EditableBinding* binding : order)
    block->bindings.splice(block->bindings.end(), block->bindings, binding->place);
  MarkChanged(order.front()->body);
}

}  // namespace distir::optimize
