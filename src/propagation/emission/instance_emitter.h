/*!
 * \file propagation/emission/instance_emitter.h
 * \brief Writes one instance of a function, solved, as a function with DTensor types.
 *
 * Every call is made consistent: how it is computed is decided here (rules/call/call_sharding.h),
 * its arguments are redistributed to what that needs, its result type is what type inference gives
 * for them, and a result that was solved differently is redistributed. The result of a call without
 * tensor arguments (R.zeros) stays a Tensor, and R.dist.redistribute places it for each use. A
 * condition is brought to the mesh of its branches.
 *
 * Worked example, x solved as "S[0]" and w as "S[0]" on one axis:
 *
 *     lv = R.matmul(x, w)    ->    w_1 = R.dist.redistribute(w, mesh, "R")
 *                                  lv = R.matmul(x, w_1)                     # "S[0]"
 */
#ifndef DISTIR_PROPAGATION_EMISSION_INSTANCE_EMITTER_H_
#define DISTIR_PROPAGATION_EMISSION_INSTANCE_EMITTER_H_

#include <functional>

#include "planning/planner.h"
#include "propagation/instances.h"

namespace distir::propagation {

/*! \brief The copy of a function that an instance is written as. */
struct Specialization {
  ir::GlobalVar name;
  ir::Type ret_ty;
};

/*! \brief State that the instances of a module share. */
struct Emission {
  dialect::MeshTable* meshes;
  planning::Planner* planner;
  /*! \brief True if no earlier run has given types to the module, so that those which are there
   * were stated. */
  bool is_first;
  /*! \brief The copy for an instance that is called. */
  std::function<Specialization(const Program& program, int instance)> specialize;
};

/*! \param exact_ret_ty The type that the function must return exactly, or null. */
ir::Function EmitInstance(const Emission& emission, const Program& program, int instance,
                          const ir::Type& exact_ret_ty);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_EMISSION_INSTANCE_EMITTER_H_
