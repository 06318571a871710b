/*!
 * \file rules/call/decision.h
 * \brief Reads how a placed call is computed, as it was decided when the call was placed.
 *
 * PropagateSharding decides how a call is computed (DecideCall) and redistributes its operands to
 * what that way needs. So the decision stands in the program, as the types of the arguments: they
 * leave one way. Passes read it here. Nothing else is kept, since a table beside the calls would be
 * lost, or wrong, as soon as another pass renames, copies or rewrites one of them, and programs
 * that are written by hand have none.
 *
 * Worked example: R.matmul(x: (8, 16) "S[1]", w: (16, 32) "S[0]") on one axis tp: the contracted
 * dimension is sharded over tp, so the result is replicated and partial=sum{tp}. With w "R" the
 * shards of x say the same, and w has to be cut: emission has written that as a redistribution, so
 * no placed call looks so.
 *
 * One thing is not in the types: the sharding of a dimension that only results have (R.full,
 * R.one_hot). It is the redistribution behind the call, of which decompose/creation.h makes shards.
 */
#ifndef DISTIR_RULES_CALL_DECISION_H_
#define DISTIR_RULES_CALL_DECISION_H_

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "rules/call/infer_type.h"
#include "rules/call/known_rules.h"
#include "rules/tir/rule.h"
#include "support/words.h"

namespace distir::rules {

struct Decision {
  FactorRule rule;
  InferredCall call;
};

/*! \brief Decision shared by calls that are alike: the way and the root. */
struct Computed {
  int root;
  CallSharding sharding;
};

/*! \brief Reads decisions of one module's calls. */
class Decisions {
 public:
  Decisions(dialect::MeshTable* meshes, KernelTable* kernels)
      : meshes_(*meshes), kernels_(*kernels), known_rules_(&rules_) {}
  Decisions(const Decisions&) = delete;  // known_rules_ refers to rules_

  /*! \brief Decision for an operator's call; nullopt without a rule, or a DTensor among its
   * arguments.
   */
  std::optional<Decision> Of(const ir::Call& call);
  /*!
   * \brief Decision for an operator's call; null as Of, and also if no operand is sharded, or
   * no factor of the rule is of a kind (ReductionFactor, ..): most calls are passed over so without
   * working out more. Worked out once for calls of one rule whose operands lie alike, as the layers
   * of a model have them. Valid as long as this object.
   */
  template <typename Kind>
  const Computed* WithFactor(const ir::Call& call) {
    if (IsElementwise(call) || !HasShardedOperand(call)) return nullptr;
    const FactorRule* rule = RuleOfPlaced(call);
    const bool has_factor =
        rule != nullptr && std::any_of(rule->factors.begin(), rule->factors.end(),
                                       [](const Factor& factor) { return factor.Is<Kind>(); });
    return has_factor ? &ComputedAs(call, *rule) : nullptr;
  }
  /*! \brief Decision for a kernel on DTensors. Its results count, too: a kernel that only fills its
   * output has no operands. A sharding that its index maps do not allow differs from its types. */
  Decision OfKernel(const ir::Call& call);
  /*! \brief Decision for a local view, by its kernel's index maps; the results are as its
   * type states them. nullopt for other calls. */
  std::optional<Decision> OfLocalView(const ir::Call& call);

 private:
  /*! \brief True if all factors of a call are parallel, by its record. */
  static bool IsElementwise(const ir::Call& call);
  bool HasShardedOperand(const ir::Call& call);
  /*! \brief Null where it has no rule or no DTensor among its arguments. */
  const FactorRule* RuleOfPlaced(const ir::Call& call);
  Decision Read(const ir::Call& call, FactorRule rule);
  /*! \param rule Of rules_, so that its address tells it. */
  const Computed& ComputedAs(const ir::Call& call, const FactorRule& rule);

  dialect::MeshTable& meshes_;
  KernelTable& kernels_;
  RuleSet rules_;
  KnownRules known_rules_;
  /*! \brief Decisions by the rule and, for each operand, its mesh, its sharding in meshes_ and its
   * size. */
  std::unordered_map<Words, Computed, HashWords> computed_;
  // Of the call asked for.
  Words key_;
  std::vector<ir::DTensorType> operands_;
};

/*! \brief True if the reading of a call from its types equals the decision, but for factors that no
 * operand has.
 */
bool IsAsDecided(const FactorRule& rule, const CallSharding& decided, const CallSharding& read);

}  // namespace distir::rules
#endif  // DISTIR_RULES_CALL_DECISION_H_
