/*!
 * \file optimize/editable_function.h
 * \brief A function as lists of lines that optimisations edit in place.
 *
 * Reading and writing TVM's immutable functions once per optimisation would cost more than the
 * optimisations, so all of them share one listing, which is written back once. Lines that nobody
 * changed keep their objects. Variables keep their identity as long as their type stays.
 *
 * A line is a binding, or the result of a sequence (then it has no variable). Branches of an If are
 * bodies of their own. Uses are counted per occurrence.
 *
 *     EditableFunction listing(function);
 *     for (Line* line : listing.Lines()) {
 *       if (IsRelu(line->value)) listing.Alias(line, ir::Call::Cast(line->value).args()[0]);
 *     }
 *     function = listing.Finish();
 */
#ifndef DISTIR_OPTIMIZE_EDITABLE_FUNCTION_H_
#define DISTIR_OPTIMIZE_EDITABLE_FUNCTION_H_

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/names.h"
#include "ir/node.h"

namespace distir {
namespace optimize {

namespace ffi = tvm::ffi;

struct Body;
struct Block;

struct Line {
  ir::Var var;           // null: the result of a body
  ir::Expr value;        // of an If, the expression as it was; its branches are below
  ir::Type cast;         // of a match_cast, else null
  ir::Binding original;  // the binding that this line was read from, null once it is changed
  std::unique_ptr<Body> true_branch, false_branch;
  Block* block = nullptr;  // null for the result of a body
  Body* body = nullptr;
  bool dropped = false;
  std::list<std::unique_ptr<Line>>::iterator place;  // in its block
};

struct Block {
  bool is_dataflow = false;
  std::list<std::unique_ptr<Line>> lines;
};

struct Body {
  std::list<Block> blocks;
  Line result;
  Line* owner = nullptr;  // the If, null for a function's body
  ir::SeqExpr original;
  bool changed = false;  // itself or a branch below it
};

class EditableFunction {
 public:
  explicit EditableFunction(const ir::Function& function);
  /*! \brief The function as edited; the same object when nothing was. */
  ir::Function Finish();

  const ir::Function& function() const { return function_; }
  const ffi::Array<ir::Var>& params() const { return params_; }
  Body* body() { return body_.get(); }
  /*! \brief All lines in program order: an If before the lines of its branches, results last. */
  std::vector<Line*> Lines();

  /*! \brief The line that binds a variable; null for parameters and other expressions. */
  Line* DefinitionOf(const ir::Expr& var) const;
  int NumUses(const ir::Expr& var) const;
  /*! \brief The lines that use a variable, each as often as it does; in no stated order. */
  const std::vector<Line*>& UsersOf(const ir::Expr& var) const;
  /*! \brief The only line that uses a variable, which uses it once; else null. */
  Line* OnlyUserOf(const ir::Expr& var) const;
  /*! \brief Whether an expression of variables can stand at a line that comes behind their
   * definitions. */
  bool IsVisible(const ir::Expr& expr, const Line* at) const;

  /*! \brief Gives a line another value of the same type. */
  void SetValue(Line* line, const ir::Expr& value);
  /*! \brief Binds a new variable in front of a line of a block; its name is made from `like`. */
  ir::Var InsertBefore(Line* at, const std::string& like, const ir::Expr& value);
  /*! \brief Binds a new variable behind a line of a block. */
  ir::Var InsertAfter(Line* at, const std::string& like, const ir::Expr& value);
  /*! \brief Lets `value`, of the same type and visible there, stand for the line's variable. */
  void Alias(Line* line, const ir::Expr& value);
  /*! \brief Removes a pure line whose variable nothing uses, and then what only it used. Removed
   * lines stay valid to look at. */
  void DropUnused(Line* line);
  /*! \brief Replaces a parameter by one of another type, its uses included. */
  ir::Var RetypeParam(int index, const ir::Type& type);
  /*! \brief Puts the lines of a block in another order. */
  void Reorder(Block* block, const std::vector<Line*>& order);

 private:
  std::unique_ptr<Body> Read(const ir::SeqExpr& seq, Line* owner);
  ir::SeqExpr Write(Body* body);
  void AddUses(Line* line);
  void RemoveUses(Line* line);
  void ReplaceUses(const ir::Var& var, const ir::Expr& by);
  void MarkChanged(Body* body);
  void Collect(Body* body, std::vector<Line*>* lines);
  ir::Var Insert(Block* block, Body* body, std::list<std::unique_ptr<Line>>::iterator before,
                 const std::string& like, const ir::Expr& value);

  ir::Function function_;
  ir::Names names_;
  ffi::Array<ir::Var> params_;
  std::unique_ptr<Body> body_;
  std::unordered_map<const ffi::Object*, Line*> definitions_;
  std::unordered_map<const ffi::Object*, std::vector<Line*>> users_;
  std::list<std::unique_ptr<Line>> dropped_;
};

/*! \brief Calls `visit` for every occurrence of a variable in a value, branches left out. */
void VisitVarsOf(const ir::Expr& value, const std::function<void(const ir::Expr&)>& visit);
/*! \brief Whether a value is known to have no effect, so that it may be removed. */
bool IsPure(const ir::Expr& value);
/*!
 * \brief Whether no line may move past this one: it may have an effect, works in place, branches,
 * or defines symbolic dimensions that types of other lines use. In a dataflow block only calls of
 * packed functions, calls in place and calls with objects such as caches are suspect.
 */
bool IsBarrier(const Line& line);

}  // namespace optimize
}  // namespace distir
#endif  // DISTIR_OPTIMIZE_EDITABLE_FUNCTION_H_
