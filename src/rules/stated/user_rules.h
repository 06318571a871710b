/*!
 * \file rules/stated/user_rules.h
 * \brief Registry of users' rules: for operators and packed functions by name, for kernels as an
 * attribute.
 *
 * They are the process's, as operators are: registered before PropagateSharding and kept for the
 * passes behind it. A user's rule for an operator takes the place of the table's.
 */
#ifndef DISTIR_RULES_STATED_USER_RULES_H_
#define DISTIR_RULES_STATED_USER_RULES_H_

#include <optional>
#include <string>

#include "ir/tir_node.h"
#include "rules/stated/rule_text.h"

namespace distir::rules {

/*! \brief The attribute of a PrimFunc that states its rule: operands, then results, in the order of
 * its buffers. */
constexpr const char* kRuleAttribute = "distir.rule";

/*! \brief Enters the rule of a packed function of this library, which a user's rule replaces. */
void EnterRuleOfFunction(const std::string& name, const std::string& rule);
/*! \brief The rule registered for what a call calls, or null. */
const RuleText* FindUserRule(const ir::Call& call);
/*! \brief The rule that a kernel states. */
std::optional<RuleText> StatedRule(const std::string& name, const ir::PrimFunc& function);

}  // namespace distir::rules
#endif  // DISTIR_RULES_STATED_USER_RULES_H_
