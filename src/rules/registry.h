/*!
 * \file rules/registry.h
 * \brief Finds the rule of a call: a user's, the operator record's, or the kernel's.
 */
#ifndef DISTIR_RULES_REGISTRY_H_
#define DISTIR_RULES_REGISTRY_H_

#include "rules/factor/factor_rule.h"

namespace distir::rules {

/*! \brief True if anything says how a call is sharded: its record, its kernel or a user. */
bool HasRule(const ir::Call& call);
/*! \brief The rule of a call: a user's, else the record's; ReplicateAll, with a warning, where
 * there is none or the record says that the operator is replicated, and for operators on tensors of
 * unknown shape. */
FactorRule RuleOf(const OpView& view);
/*! \brief Says what a rule does not shard, once per message, if the view names a function. */
void WarnOfCall(const OpView& view, const std::string& message);

}  // namespace distir::rules
#endif  // DISTIR_RULES_REGISTRY_H_
