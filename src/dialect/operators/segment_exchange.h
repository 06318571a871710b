/*!
 * \file dialect/operators/segment_exchange.h
 * \brief Operator for movement along one dimension of a sharded tensor, in one grouped step of
 * sends and receives: each device receives the missing elements of its block.
 *
 *     y: DTensor((16,)) = R.dist.segment_exchange(x, "mesh[0]", "S[0]", dim=0, size=16,
 *         segments=[[0, 1, 1, 3], ..], fill="0")
 *
 * Dimension `dim` of the result has `size` elements; a segment (source, target, step, count) gives
 * the places target, target + 1, .. the elements source, source + step, .. of x. What no segment
 * gives is `fill`, a number, or kAnyFill where it does not matter. All other dimensions stay as
 * they are. The worked example is in mesh/segments.h. On local tensors the operator has a plan,
 * see abi/segment_plan.h:
 *
 *     y: Tensor((4,)) = R.ccl.segment_exchange(x, plan="..")
 */
#ifndef DISTIR_DIALECT_OPERATORS_SEGMENT_EXCHANGE_H_
#define DISTIR_DIALECT_OPERATORS_SEGMENT_EXCHANGE_H_

#include <string>
#include <vector>

#include "ir/node.h"
#include "mesh/segments.h"

namespace distir::dialect {

/*! \brief The fill of places that nobody reads. */
constexpr const char* kAnyFill = "any";

/*! \brief True if this is `relax.dist.segment_exchange`. */
bool IsSegmentExchange(const ir::Expr& op);
/*! \brief True if this is `relax.ccl.segment_exchange`. */
bool IsLocalSegmentExchange(const ir::Expr& op);

/*! \brief Segments that one call moves. */
struct SegmentMove {
  mesh::MovedDim moved;
  std::vector<mesh::Segment> segments;
  std::string fill;  // a number, or kAnyFill
};

/*! \brief The call on DTensors; `target` is the type of the result. */
ir::Call MakeSegmentExchange(const ir::Expr& x, const ir::DTensorType& target,
                             const SegmentMove& move);
ir::Call MakeLocalSegmentExchange(const ir::Expr& x, const ir::Type& type, const std::string& plan);

/*! \brief Reads the segments that a call on DTensors moves.
 * \throws ValueError naming the attribute that is missing or wrong. */
SegmentMove MoveOf(const ir::Call& call);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_SEGMENT_EXCHANGE_H_
