/*!
 * \file rules/registry.h
 * \brief The table of operators: which rule each has, and how its local call differs from the
 * global one.
 *
 * A family file holds the rule functions of one family and one `RuleTable` that lists its
 * operators; a new operator is one line there. An operator without a line is replicated, with one
 * warning that names it.
 */
#ifndef DISTIR_RULES_REGISTRY_H_
#define DISTIR_RULES_REGISTRY_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "rules/factor_rule.h"

namespace distir {
namespace rules {

using RuleFunction = FactorRule (*)(const OpView& view);
using AttrsFunction = ir::Node (*)(const OpView& view);

struct RuleEntry {
  const char* op;  // "relax.matmul"
  RuleFunction rule;
  /*! \brief Index of the argument that states the result's shape and must become the local one; -1:
   * none. */
  int shape_argument = -1;
  /*! \brief The attributes of the worker's call, made from the global one, where those of the
   * global one mean something else on local shapes; null: the same. */
  AttrsFunction local_attrs = nullptr;
  const char* family = "";
};

/*! \brief Enters rules in the registry when the library is loaded. */
class RuleTable {
 public:
  RuleTable(const char* family, std::initializer_list<RuleEntry> entries);
};

/*! \brief The entry of an operator, or null. */
const RuleEntry* FindRule(const ir::Expr& op);
/*! \brief All entries, ordered by operator name. */
std::vector<RuleEntry> AllRules();
/*! \brief The rule of a call; ReplicateAll, with one warning per operator, where the table has
 * none. */
FactorRule RuleOf(const OpView& view);

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_REGISTRY_H_
