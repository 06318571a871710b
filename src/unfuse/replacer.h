/*!
 * \file unfuse/replacer.h
 * \brief Replaces values of a function. `Found` reads the function, says which values are replaced,
 * and writes what takes their place; SortedRows (unfuse/sorted_rows.h) is one. It has
 * \code
 *   bool empty() const;                      // whether there is nothing to be replaced
 *   bool Replaces(const ir::Var& var) const;
 *   bool IsUnused(const ir::Var& var) const; // by what is left
 *   ir::Expr Write(const ir::Var& var, const std::function<ir::Expr(const ir::Expr&)>& emit) const;
 * \endcode
 */
#ifndef DISTIR_UNFUSE_REPLACER_H_
#define DISTIR_UNFUSE_REPLACER_H_

#include "ir/report.h"
#include "ir/rewriter.h"
#include "unfuse/pass.h"

namespace distir::unfuse {

template <typename Found>
class Replacer : public ir::FunctionRewriter {
 public:
  /*!
   * \param op The operator that replaced values are of, for `explain`.
   * \param what Name of them, for reports.
   */
  Replacer(const ir::Function& function, const char* op, const char* what)
      : found_(function), op_(op), what_(what) {}

  /*! \brief The function; null where nothing is replaced. */
  ir::Function Run(const ir::Function& function) {
    return found_.empty() ? ir::Function() : RewriteFunction(function);
  }

 private:
  void RewriteVarBinding(const ir::Var& var, const ir::Expr& value) override {
    if (found_.IsUnused(var)) return;
    if (!found_.Replaces(var)) return FunctionRewriter::RewriteVarBinding(var, value);
    ir::Count(what_);
    Credit(kPass, op_, var);
    Alias(var, Rewrite(found_.Write(
                   var, [&](const ir::Expr& made) { return Emit(var.name(), Rewrite(made)); })));
  }

  const Found found_;
  const char* op_;
  const char* what_;
};

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_REPLACER_H_
