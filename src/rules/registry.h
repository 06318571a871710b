/*!
 * \file rules/registry.h
 * \brief The table of operators: which rule each has, and how its local call differs from the
 * global one.
 *
 * A family file holds the rule functions of one family and `RuleTable`s that list its operators; a
 * new operator is one line there. A table also says in words what its rules do, which is what
 * docs/operators.md prints; an operator that no rule shards stands in a table too, with the reason.
 * An operator that is in no table is replicated, with one warning that names it.
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
/*! \brief Of a worker's call: `global` is the call on whole tensors, `local` the same call on the
 * worker's, its arguments already local. */
using AttrsFunction = ir::Node (*)(const OpView& global, const OpView& local);
using ArgsFunction = ffi::Array<ir::Expr> (*)(const OpView& global, const OpView& local);

/*! \brief What a rule does with the dimensions of its operator, in words. */
struct RuleSummary {
  const char* parallel;         // dimensions that every shard computes alone
  const char* reduced = "";     // dimensions whose shards are combined, and how
  const char* whole = "";       // dimensions that every device needs all of
  const char* special = "";     // dimensions that an algorithm of expand/ keeps sharded, and which;
                                // or how it is distributed where factors do not say it
  const char* replicated = "";  // why nothing is sharded; empty otherwise
};

struct RuleEntry {
  const char* op;  // "relax.matmul"
  /*! \brief Null where the operator is only described: it never has a rule of its own. */
  RuleFunction rule;
  /*! \brief Index of the argument that states the result's shape and must become the local one; -1:
   * none. */
  int shape_argument = -1;
  /*! \brief The attributes of the worker's call, where those of the global one mean something else
   * on local shapes; null: the same. */
  AttrsFunction local_attrs = nullptr;
  /*! \brief The same for arguments that are no tensors. */
  ArgsFunction local_args = nullptr;
  const char* family = "";
  RuleSummary summary = {""};
};

/*! \brief Enters rules in the registry when the library is loaded. */
class RuleTable {
 public:
  RuleTable(const char* family, const RuleSummary& summary,
            std::initializer_list<RuleEntry> entries);
};

/*! \brief Operators that are kept whole, because of `reason`. */
class ReplicatedTable {
 public:
  ReplicatedTable(const char* family, const char* reason, std::initializer_list<const char*> ops);
};

/*! \brief Operators that no rule decides: they are distributed as `special` says. */
class DescribedTable {
 public:
  DescribedTable(const char* family, const char* special, std::initializer_list<const char*> ops);
};

/*! \brief The entry of an operator that has a rule, or null. */
const RuleEntry* FindRule(const ir::Expr& op);
/*! \brief All entries, ordered by operator name. */
std::vector<RuleEntry> AllRules();
/*! \brief Whether anything says how a call is sharded: the table, its kernel or a user. */
bool HasRule(const ir::Call& call);
/*! \brief The rule of a call: a user's, else the table's; ReplicateAll, with one warning per
 * operator, where there is none or the table says that the operator is replicated. */
FactorRule RuleOf(const OpView& view);

}  // namespace rules
}  // namespace distir
#endif  // DISTIR_RULES_REGISTRY_H_
