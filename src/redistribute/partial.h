/*!
 * \file redistribute/partial.h
 * \brief Finds the reductions that the result of a call on DTensors still needs.
 *
 * Worked example: matmul of a (8, 16) sharded "S[1]" and a (16, 32) sharded "S[0]" on one mesh axis
 * x gives every device a sum over its part of the 16: [-|-] partial=sum{x}.
 */
#ifndef DISTIR_REDISTRIBUTE_PARTIAL_H_
#define DISTIR_REDISTRIBUTE_PARTIAL_H_

#include <functional>
#include <optional>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "mesh/sharding.h"
#include "rules/call/decision.h"

namespace distir::redistribute {

struct PartialValue {
  int root;                 // in the table given
  mesh::Sharding sharding;  // with partial axes
};

/*! \brief The partial value that a call computes; nullopt when it is not partial. Of a local view
 * it is what its kernel leaves: the program has to reduce it. */
std::optional<PartialValue> PartialResult(const ir::Call& call, rules::Decisions* decisions);

/*! \brief Axes over which a value still has to be reduced. */
struct PartialAxes {
  int root;  // in the table given
  mesh::AxisList axes;
  mesh::Reduction reduction;
};

/*! \brief Partial axes of operands and result of a call. */
struct PartialFlow {
  /*! \brief True if the reduction may come behind the call; true if no operand is partial. */
  bool is_allowed;
  /*! \brief Partial axes of the call's result, its own reduction included, or null. */
  std::optional<PartialAxes> result;
};

/*!
 * \brief Follows partial values through a call.
 *
 * Operators let them pass where rules/linearity.h says so, where all of them are partial alike, and
 * where no operand and no result is sharded over the same axes (devices would combine different
 * blocks). Collectives that move data let them pass on the same condition; reductions take off
 * what they reduce. Worked example: with a and b partial=sum{x}, add(a, b) is partial=sum{x};
 * all_reduce(a) over x is not partial; add(a, c) is refused if only a is.
 *
 * \param partial_of Partial axes of an argument, or of a field of a tuple argument, or null.
 * \param own Partial axes that the call itself adds, if no operand is partial.
 */
PartialFlow FlowThrough(const ir::Call& call,
                        const std::function<const PartialAxes*(const ir::Expr&)>& partial_of,
                        const std::optional<PartialValue>& own, dialect::MeshTable* meshes);

}  // namespace distir::redistribute
#endif  // DISTIR_REDISTRIBUTE_PARTIAL_H_
