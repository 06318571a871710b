/*!
 * \file explain/chain.h
 * \brief Finds the chain from a sharded dimension back to the annotation that states it.
 *
 * Dimensions are linked where an operator has the same factor in both (rules/factor/factor_rule.h),
 * and across calls of functions. A chain is a shortest way along dimensions that have the axis, to
 * a tensor that an annotation or a type states: one of those that the value is computed from, if
 * any leads there, as readers expect.
 *
 * Worked example: y = relu(x), z = matmul(y, w), x stated ('dp', None). Dimension 0 of z over 'dp':
 * z, from y through relax.matmul, from x through relax.nn.relu.
 */
#ifndef DISTIR_EXPLAIN_CHAIN_H_
#define DISTIR_EXPLAIN_CHAIN_H_

#include <optional>
#include <string>
#include <vector>

#include "explain/program.h"

namespace distir::explain {

/*! \brief One dimension of one tensor. */
struct Place {
  const FunctionView* view;
  int slot;
  int dim;
};

struct Hop {
  Place to;
  std::string through;  // an operator, "call", "return"
  /*! \brief For each dimension of the tensor that the hop comes from, the one of this tensor that
   * is linked to it; -1: none. */
  std::vector<int> dims;
};

/*! \brief The hops to the stated tensor, none if the place itself is; nullopt if none leads there.
 */
std::optional<std::vector<Hop>> FindChain(Program* program, const Place& from,
                                          const mesh::AxisRef& axis);

/*! \brief A sharding of the chain's first tensor, of so many dimensions, as one of its last;
 * nullopt where a sharded dimension is linked to none. */
std::optional<mesh::Sharding> Carry(const mesh::Sharding& sharding, const std::vector<Hop>& hops);

}  // namespace distir::explain
#endif  // DISTIR_EXPLAIN_CHAIN_H_
