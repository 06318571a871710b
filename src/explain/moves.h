/*!
 * \file explain/moves.h
 * \brief Lists the redistributions and reductions of a function, from a tensor to its readers.
 *
 * A move leads from a tensor that is computed or stated, through collectives, to one that something
 * else reads. Each collective belongs to one move, the first that it is on.
 *
 * Worked example: narrow_2 = reduce_scatter(narrow_1), narrow = exchange(narrow_2), and
 * y = multiply(narrow, gate): one move of narrow_1 to narrow, by way of narrow_2, for y.
 */
#ifndef DISTIR_EXPLAIN_MOVES_H_
#define DISTIR_EXPLAIN_MOVES_H_

#include <string>
#include <utility>
#include <vector>

#include "explain/conflict.h"
#include "explain/program.h"

namespace distir::explain {

struct MovedTensor {
  ir::Var origin, end;
  std::vector<std::string> variables;  // what its collectives bind, in program order
  std::vector<std::pair<std::string, std::string>> readers;  // variable, operator
  std::string maker;                                         // the operator of the origin, or empty
  std::string source, target;                                // shardings; empty: not known
  bool is_partial = false;                                   // the origin is
  bool disagrees = false;                                    // two sides want it differently
  bool is_stated = false;  // an annotation or the user asks for it
};

std::vector<MovedTensor> ListMoves(Program* program, const FunctionView& view);

/*! \brief Cause of a move, for the dimensions in which both sides differ. */
struct MoveCause {
  std::vector<std::string> source;  // why the origin is sharded as it is
  std::vector<std::string> target;  // why the end is
  MoveExplanation conflict;
};

MoveCause CauseOf(Program* program, const FunctionView& view, const MovedTensor& move);

}  // namespace distir::explain
#endif  // DISTIR_EXPLAIN_MOVES_H_
