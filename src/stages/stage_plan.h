/*!
 * \file stages/stage_plan.h
 * \brief Assignment of a function's bindings to stages.
 *
 * The bindings of the body are cut in program order. Some are *carried*: they belong to no stage
 * and are written in each that uses them, since there they cost nothing or next to it. These are
 * annotations and fields of parameters, and what is computed from no tensor at all (position
 * tables). A field of a tuple, or a value that another variable renames, belongs to the stage of
 * its source.
 *
 * Example, two stages:
 *
 *     w0_1 = annotate_sharding(w0, ...)      carried
 *     w1_1 = annotate_sharding(w1, ...)      carried
 *     positions = R.arange(0, 16, 1)         carried
 *     a = R.matmul(x, w0_1)                  stage 0
 *     b = R.matmul(a, w1_1)                  stage 1
 */
#ifndef DISTIR_STAGES_STAGE_PLAN_H_
#define DISTIR_STAGES_STAGE_PLAN_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "cost/cluster.h"
#include "ir/node.h"
#include "propagation/pass.h"
#include "stages/stage_meshes.h"
#include "stages/work.h"

namespace distir::stages {

/*! \brief A binding that is written where it is used. */
struct Carried {
  ir::Expr value;
  ir::Var param;  // that it is of; null where it is computed from no tensor
};

/*! \brief The parameters of a function, and what of them is carried. */
class CarriedBindings {
 public:
  explicit CarriedBindings(const ir::Function& function);

  bool IsParam(const ir::Expr& expr) const { return is_weight_.count(expr.get()) > 0; }
  /*! \brief True if a parameter is a weight that is one tensor: each stage has its own. */
  bool IsTensorWeight(const ir::Var& param) const { return is_weight_.at(param.get()); }
  /*! \brief The carried binding of a variable, or null. */
  const Carried* Find(const ir::Expr& var) const;
  /*! \brief Enters a binding of the body if it is carried. */
  bool Add(const ir::Var& var, const ir::Expr& value);

 private:
  bool IsFromNothing(const ir::Expr& expr) const;

  std::unordered_map<const ffi::Object*, bool> is_weight_;  // of parameters
  std::unordered_map<const ffi::Object*, Carried> carried_;
};

struct StagePlan {
  /*! \brief Stage of each variable; those of carried bindings, and inside branches, have none. */
  std::unordered_map<const ffi::Object*, int> stage_of;
};

/*!
 * \brief Cuts a function.
 * \param shardings Shardings that propagation gives its variables; transfers are priced by them.
 * \param begins The variables with which the stages after the first begin; if it is empty, the cut
 * is searched.
 * \throws ValueError when it has fewer operators than there are stages, or no such variables.
 */
StagePlan PlanStages(const std::string& name, const ir::Function& function,
                     const CarriedBindings& carried, const propagation::VarShardings& shardings,
                     StageMeshes* meshes, const cost::Cluster& cluster, WorkEstimate* work,
                     double slack, const std::vector<std::string>& begins);

}  // namespace distir::stages
#endif  // DISTIR_STAGES_STAGE_PLAN_H_
