/*!
 * \file explain/conflict.h
 * \brief Explains a redistribution: the two sides, their costs, and annotations that avoid it.
 *
 * Worked example: total = add(a, b) with a ('dp', None) and b (None, 'dp'), b redistributed to
 * ('dp', None). One side computes total by a's sharding and moves b, the other by b's and moves a
 * and total. To avoid both, b is stated ('dp', None), or what a follows from (None, 'dp').
 */
#ifndef DISTIR_EXPLAIN_CONFLICT_H_
#define DISTIR_EXPLAIN_CONFLICT_H_

#include <string>
#include <vector>

#include "explain/program.h"

namespace distir::explain {

/*! \brief "1,024 bytes per device, 3.2 us by the cost model". */
std::string CostText(double bytes, double seconds);

/*! \brief Annotation of a variable that avoids a move, in the words of a plan. */
struct Advice {
  std::string function, variable, dims;
  /*! \brief True if it states all dimensions; else it only takes back the one in which the sides
   * differ, and is not printed. */
  bool is_complete;
};

struct MoveExplanation {
  std::vector<std::string> lines;
  std::vector<Advice> advice;
};

/*!
 * \brief Lines about the redistribution of a variable to that of `moved`, where a chain of moves
 * ends, and what would avoid it. Nothing if one of them is no single tensor on a mesh.
 */
MoveExplanation ExplainMove(Program* program, const FunctionView& view, const ir::Expr& origin,
                            const ir::Var& moved);

/*!
 * \brief True if two sides disagree about a move: more is sent than a reduction, and more than
 * nothing. True where the size is not known.
 */
bool Disagrees(Program* program, const FunctionView& view, int slot, const mesh::Sharding& want);

}  // namespace distir::explain
#endif  // DISTIR_EXPLAIN_CONFLICT_H_
