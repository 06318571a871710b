// LAPACK's functions on stacks of matrices (runtime/kernels/lapack.h): the stack is parallel.
#include <string>
#include <utility>

#include "rules/stated/user_rules.h"

namespace distir::ops {

namespace {

bool EnterRules() {
  const std::string prefix = "distir.lapack.";
  for (const auto& [name, rule] : {
           std::pair{"geqrf", "b _ _ -> b _ _, b _"},
           std::pair{"gesdd", "b _ _ -> b _ _, b _, b _ _, b _ _, b"},
           std::pair{"getrf", "b _ _ -> b _ _, b _, b"},
           std::pair{"orgqr", "b _ _, b _ -> b _ _"},
           std::pair{"potrf", "b _ _ -> b _ _, b"},
           std::pair{"syevd", "b _ _ -> b _ _, b _, b"},
           std::pair{"trsm", "b _ _, b _ _ -> b _ _"},
       }) {
    rules::EnterRuleOfFunction(prefix + name, rule);
  }
  return true;
}

[[maybe_unused]] const bool kEntered = EnterRules();

}  // namespace

}  // namespace distir::ops
