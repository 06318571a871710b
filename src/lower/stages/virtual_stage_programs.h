/*!
 * \file lower/stages/virtual_stage_programs.h
 * \brief Splits the program of a worker into one function per virtual stage.
 *
 * A function of an earlier virtual stage returns what later ones need, as a tuple; the next one
 * takes these values as its last parameters, and returns them again where they are needed still
 * later. The last one returns the result. A symbolic dimension that the parameters of a later
 * function do not define is passed on as a shape.
 *
 * Worked example; `h` is made in virtual stage 0 and used in virtual stage 1:
 *
 *     f(x, v, w):  h = x @ v; send(h); g = recv(); y = (g + h) @ w; return y
 *
 *     f0(x, v):     h = x @ v; send(h); return (h,)
 *     f1(w, h):     g = recv(); y = (g + h) @ w; return y
 */
#ifndef DISTIR_LOWER_STAGES_VIRTUAL_STAGE_PROGRAMS_H_
#define DISTIR_LOWER_STAGES_VIRTUAL_STAGE_PROGRAMS_H_

#include <vector>

#include "ir/node.h"
#include "lower/spmd/spmd_program.h"

namespace distir::lower {

struct VirtualStageProgram {
  int virtual_stage;
  ir::Function function;
  /*! \brief Positions of its parameters among the SPMD program's, without that of sizes. */
  std::vector<int> params;
  bool takes_sizes;
};

/*! \brief The programs of the virtual stages in which the worker has something to do, at least one;
 * the function itself where that is all. */
std::vector<VirtualStageProgram> CutIntoVirtualStages(const SpmdProgram& worker);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_STAGES_VIRTUAL_STAGE_PROGRAMS_H_
