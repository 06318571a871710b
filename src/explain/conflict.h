/*!
 * \file explain/conflict.h
 * \brief Why a tensor is redistributed: the two sides, what each costs, and what would avoid it.
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

namespace distir {
namespace explain {

/*! \brief "1,024 bytes per device, 3.2 us by the cost model". */
std::string CostText(double bytes, double seconds);

/*!
 * \brief Lines about the redistribution of a variable, which is no result of a move itself, to that
 * of `moved`, where a chain of moves ends.
 */
std::vector<std::string> ExplainMove(Program* program, const FunctionView& view,
                                     const ir::Expr& origin, const ir::Var& moved);

}  // namespace explain
}  // namespace distir
#endif  // DISTIR_EXPLAIN_CONFLICT_H_
