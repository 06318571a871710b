/*!
 * \file optimize/program/editable_function.h
 * \brief A function as lists of bindings that optimisations edit in place.
 *
 * Reading and writing TVM's immutable functions once per optimisation would cost more than the
 * optimisations, so all of them edit one copy, which is written back once. Bindings that
 * nobody changed keep their objects. Variables keep their identity as long as their type stays.
 *
 * An EditableBinding is a binding, or the result of a sequence (then it has no variable). Branches
 * of an If are bodies of their own. Uses are counted per occurrence.
 *
 *     EditableFunction editable(function);
 *     for (EditableBinding* binding : editable.Bindings()) {
 *       ir::Call call = ir::Call::Cast(binding->value);
 *       if (IsRelu(call)) editable.Alias(binding, call.args()[0]);
 *     }
 *     function = editable.Finish();
 */
#ifndef DISTIR_OPTIMIZE_PROGRAM_EDITABLE_FUNCTION_H_
#define DISTIR_OPTIMIZE_PROGRAM_EDITABLE_FUNCTION_H_

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/module/names.h"
#include "ir/node.h"
#include "support/pointer_map.h"

namespace distir::optimize {

namespace ffi = tvm::ffi;

struct Body;
struct Block;

struct EditableBinding {
  ir::Var var;           // null: the result of a body
  ir::Expr value;        // of an If, the expression as it was; its branches are below
  ir::Type cast;         // of a match_cast, else null
  ir::Binding original;  // what it was read from, null once it is changed
  std::unique_ptr<Body> true_branch, false_branch;
  Block* block = nullptr;  // null for the result of a body
  Body* body = nullptr;
  bool dropped = false;
  std::list<std::unique_ptr<EditableBinding>>::iterator place;  // in its block
};

struct Block {
  bool is_dataflow = false;
  std::list<std::unique_ptr<EditableBinding>> bindings;
};

struct Body {
  std::list<Block> blocks;
  EditableBinding result;
  EditableBinding* owner = nullptr;  // the If, null for a function's body
  ir::SeqExpr original;
  bool changed = false;  // itself or a branch below it
};

class EditableFunction {
 public:
  explicit EditableFunction(const ir::Function& function);
  /*! \brief The function as edited; the same object when nothing was. */
  ir::Function Finish();

  const ir::Function& function() const { return function_; }
  const ir::NodeArray<ir::Var>& params() const { return params_; }
  Body* body() { return body_.get(); }
  /*! \brief All bindings in program order: an If before the bindings of its branches, results last.
   */
  std::vector<EditableBinding*> Bindings();

  /*! \brief The binding that binds a variable; null for parameters and other expressions. */
  EditableBinding* DefinitionOf(const ir::Expr& var) const;
  int NumUses(const ir::Expr& var) const;
  /*! \brief The bindings that use a variable, each as often as it does; in no stated order. */
  const std::vector<EditableBinding*>& UsersOf(const ir::Expr& var) const;
  /*! \brief The only binding that uses a variable, which uses it once; else null. */
  EditableBinding* OnlyUserOf(const ir::Expr& var) const;
  /*! \brief True if an expression of variables can stand at a binding that comes behind their
   * definitions. */
  bool IsVisible(const ir::Expr& expr, const EditableBinding* at) const;

  /*! \brief Gives a binding another value of the same type. */
  void SetValue(EditableBinding* binding, const ir::Expr& value);
  /*! \brief Binds a new variable in front of a binding of a block; its name is made from `like`. */
  ir::Var InsertBefore(EditableBinding* at, const std::string& like, const ir::Expr& value);
  /*! \brief Lets `value`, of the same type and visible there, stand for the binding's variable. */
  void Alias(EditableBinding* binding, const ir::Expr& value);
  /*! \brief Removes a pure binding whose variable nothing uses, and then what only it used. Removed
   * bindings stay valid to look at. */
  void DropUnused(EditableBinding* binding);
  /*! \brief Replaces a parameter by one of another type, its uses included. */
  ir::Var RetypeParam(int index, const ir::Type& type);
  /*! \brief Puts the bindings of a block in another order. */
  void Reorder(Block* block, const std::vector<EditableBinding*>& order);

 private:
  std::unique_ptr<Body> Read(const ir::SeqExpr& seq, EditableBinding* owner);
  ir::SeqExpr Write(Body* body);
  void AddUses(EditableBinding* binding);
  void RemoveUses(EditableBinding* binding);
  void ReplaceUses(const ir::Var& var, const ir::Expr& by);
  void MarkChanged(Body* body);
  void Collect(Body* body, std::vector<EditableBinding*>* bindings);
  ir::Var Insert(Block* block, Body* body,
                 std::list<std::unique_ptr<EditableBinding>>::iterator before,
                 const std::string& like, const ir::Expr& value);

  ir::Function function_;
  ir::Names names_;
  ir::NodeArray<ir::Var> params_;
  std::unique_ptr<Body> body_;
  PointerMap<EditableBinding*> definitions_;  // null for what was dropped
  std::unordered_map<const ffi::Object*, std::vector<EditableBinding*>> users_;
  std::list<std::unique_ptr<EditableBinding>> dropped_;
};

/*! \brief Calls `visit` for every occurrence of a variable in a value, branches left out. */
void VisitVarsOf(const ir::Expr& value, const std::function<void(const ir::Expr&)>& visit);
/*! \brief True if a value is known to have no effect, so that it may be removed. */
bool IsPure(const ir::Expr& value);
/*!
 * \brief True if no binding may move past this one: it may have an effect, works in place,
 * branches, or defines symbolic dimensions that types of other bindings use. In a dataflow block
 * only calls of packed functions, calls in place and calls with objects such as caches are suspect.
 */
bool IsBarrier(const EditableBinding& binding);

}  // namespace distir::optimize
#endif  // DISTIR_OPTIMIZE_PROGRAM_EDITABLE_FUNCTION_H_
