/*!
 * \file rules/stated/rule_text.h
 * \brief Parses factor rules that users write, einsum-like.
 *
 *     rule   = tensors "->" tensors { ";" clause }
 *     tensors = tensor { "," tensor }     nothing where there are no operands
 *     tensor = { dim } | "()"             "()" has no dimensions
 *     dim    = name | "_" | "(" name { name } ")"
 *     clause = ("sum" | "max" | "min" | "prod" | "mean") name { name } | name "=" integer
 *
 * A name that operands and results have is parallel. One that only operands have is reduced as a
 * clause says, else replicated, as is "_" and what only results have. "(a b)" is one dimension made
 * of two factors, major first, whose sizes are known from elsewhere or stated.
 *
 * Worked example: "b s h, h o -> b s o; sum h" is a matrix product, "b (h d) -> b h d; d=64" splits
 * heads.
 */
#ifndef DISTIR_RULES_STATED_RULE_TEXT_H_
#define DISTIR_RULES_STATED_RULE_TEXT_H_

#include <string>
#include <vector>

#include "rules/factor/factor_rule.h"

namespace distir::rules {

/*! \brief A rule without shapes. */
struct RuleText {
  std::string owner;  // operator, function or kernel, for messages
  std::string text;
  struct Name {
    std::string name;
    mesh::Reduction reduction = mesh::Reduction::kNone;
    int64_t size = -1;  // stated, -1: not
  };
  std::vector<Name> names;
  std::vector<TensorFactors> operands, results;  // indices of names; "_" has none
};

/*! \brief Reads a rule.
 * \throws ValueError naming the owner and what is wrong. */
RuleText ParseRule(const std::string& owner, const std::string& text);

/*!
 * \brief The rule of one call.
 * \throws ValueError naming the owner, and the tensor and dimension that the rule contradicts.
 */
FactorRule ApplyRule(const RuleText& rule, const OpView& view);

}  // namespace distir::rules
#endif  // DISTIR_RULES_STATED_RULE_TEXT_H_
