/*!
 * \file phases/phase.h
 * \brief Phases of a module, from annotations to the programs of workers.
 *
 *     annotated    Tensors, some of them through R.dist.annotate_sharding
 *     propagated   DTensors and R.dist.redistribute
 *     legalized    DTensors and collectives on them
 *     lowered      local Tensors and R.ccl collectives, one program per worker
 *     runtime      calls of the runtime
 *
 * The phase is read off the module, never written to it: passes of TVM drop and merge what a module
 * says of itself, and programs may be written by hand in any phase. A module is as far as its least
 * advanced function.
 */
#ifndef DISTIR_PHASES_PHASE_H_
#define DISTIR_PHASES_PHASE_H_

#include <optional>
#include <string>

#include "ir/node.h"

namespace distir::phases {

enum class Phase { kAnnotated, kPropagated, kLegalized, kLowered, kRuntime };

const char* NameOf(Phase phase);

/*! \brief The phase of a module; none where nothing in it is distributed. Linear in the module. */
std::optional<Phase> PhaseOf(const ir::IRModule& mod);

struct LeastAdvancedFunction {
  std::string name;
  std::optional<Phase> phase;  // none where no function has annotations or DTensors
};

/*! \brief The least advanced of the functions with annotations or DTensors, the first by name. */
LeastAdvancedFunction LeastAdvanced(const ir::IRModule& mod);

}  // namespace distir::phases
#endif  // DISTIR_PHASES_PHASE_H_
