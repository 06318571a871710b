/*!
 * \file rules/call/known_rules.h
 * \brief Caches the rules of calls; equal calls share one.
 *
 * The rule of an operator with a record follows from the key alone: the operator, its attributes by
 * value, the shapes and dtypes of its tensors, and its other arguments. Dimensions that are no
 * numbers, and objects that are not told by value, stand in it by their addresses, and each entry
 * keeps the call that it was made for, so that an address means the same as long as the table.
 * Rules of kernels, of users and of operators without a record are made anew each time. A table
 * serves one function or one pass.
 *
 * Worked example: 80 layers multiply (1, 2048, 8192) by (8192, 1024): Matmul is asked once.
 */
#ifndef DISTIR_RULES_CALL_KNOWN_RULES_H_
#define DISTIR_RULES_CALL_KNOWN_RULES_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "ir/node.h"
#include "rules/factor/factor_rule.h"
#include "support/words.h"

namespace distir::rules {

class KnownRules {
 public:
  /*! \param rules Has the rules; must outlive this object. */
  explicit KnownRules(RuleSet* rules) : rules_(*rules) {}

  /*!
   * \brief Returns RuleOf(ViewCall(call, result_ty, kernels)); valid as long as the set of rules.
   * \param function As OpView::function.
   */
  const FactorRule* Of(const ir::Call& call, const ir::Type& result_ty, KernelTable* kernels,
                       const std::string* function = nullptr);

 private:
  struct Entry {
    const FactorRule* rule;
    ir::Call call;  // these keep alive what the key names by address
    ir::Type result_ty;
    std::vector<ffi::Any> held;
  };

  RuleSet& rules_;
  std::unordered_map<Words, Entry, HashWords> known_;
  // Of the call asked for.
  Words key_;
  std::vector<ffi::Any> held_;
};

}  // namespace distir::rules
#endif  // DISTIR_RULES_CALL_KNOWN_RULES_H_
