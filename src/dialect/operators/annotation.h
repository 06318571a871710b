/*!
 * \file dialect/operators/annotation.h
 * \brief User statements for propagation: annotations with their terms, barriers and groups.
 *
 * An annotation is closed unless its terms say otherwise: its tensor has exactly the axes that are
 * stated. Terms are attributes beside mesh and placement, which print and parse:
 *
 *     lv = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R", open=[0], priorities=[1],
 *                                   replicated=[1])
 *
 * Dimension 0 of x is sharded by axis 0 of the mesh, and may be sharded further behind it, but not
 * by axis 1; all of this counts once what has the priority 0 has spread. Dimension 1 is not
 * sharded.
 *
 *     lv1 = R.dist.propagation_barrier(lv, blocks="backward")
 *     lv2: Tuple(..) = R.dist.sharding_group((lv0, lv1))     # sharded alike, whatever links them
 *
 * Propagation leaves none of these operators behind.
 */
#ifndef DISTIR_DIALECT_OPERATORS_ANNOTATION_H_
#define DISTIR_DIALECT_OPERATORS_ANNOTATION_H_

#include <string>
#include <vector>

#include "ir/node.h"

namespace distir::dialect {

/*! \brief Terms of an annotation in addition to its axes. */
struct Terms {
  std::vector<int> open;        // tensor dimensions that may be sharded further
  std::vector<int> priorities;  // by tensor dimension, beginning with the first; 0 of the others
  std::vector<int> replicated;  // axes of the annotation's mesh that must not shard the tensor
  bool empty() const { return open.empty() && priorities.empty() && replicated.empty(); }
};

/*! \brief True if a call is R.dist.annotate_sharding; also of null. */
bool IsAnnotation(const ir::Call& call);
/*!
 * \param name Name of the annotated value in messages: "`x` in `main`".
 * \param rank Of its tensor.
 * \throws ValueError where they are no terms, or do not fit the mesh, the placement or the tensor.
 */
Terms TermsOf(const ir::Call& annotation, const std::string& name, int rank);
/*! \brief R.dist.annotate_sharding(value, device_mesh, placement), of the type of the value. */
ir::Call MakeAnnotation(const ir::Expr& value, const ir::DeviceMesh& mesh,
                        const ir::Placement& placement, const Terms& terms = {});

/*! \brief Directions in which a barrier blocks propagation. */
struct Blocked {
  bool forward = false;   // from operands to results
  bool backward = false;  // from results to operands
};

/*! \brief True if an operator is R.dist.propagation_barrier. */
bool IsBarrier(const ir::Expr& op);
/*! \throws ValueError where its attribute is neither "forward" nor "backward" nor "both". */
Blocked BlockedBy(const ir::Call& barrier);
/*! \brief True if an operator is R.dist.sharding_group. */
bool IsShardingGroup(const ir::Expr& op);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_ANNOTATION_H_
