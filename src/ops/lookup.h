/*!
 * \file ops/lookup.h
 * \brief Lookups in a table that is sharded along the dimension looked up, for decompositions of
 * other operators. The results are partial sums; without axes the table is replicated.
 */
#ifndef DISTIR_OPS_LOOKUP_H_
#define DISTIR_OPS_LOOKUP_H_

#include "decompose/writer.h"
#include "ops/family.h"

namespace distir::ops {

/*! \brief R.gather_elements of positions that lie within the table. */
ir::Expr LookUpElements(const ir::Expr& whole, const ir::Expr& positions, int axis,
                        const mesh::AxisList& axes, decompose::Writer* w);
/*! \brief R.take of positions that lie within the table. */
ir::Expr LookUpRows(const ir::Expr& whole, const ir::Expr& indices, int axis,
                    const mesh::AxisList& axes, decompose::Writer* w);

/*! \brief True if a dimension of unknown extent is looked up at so few positions, of known number,
 * that each may be compared with all of a shard (LookUpFew). */
bool AreFew(const Sizes& positions);
/*! \brief R.take of few positions along a dimension of any extent: of all elements those at a
 * position count, others are 0, and they are summed. */
ir::Expr LookUpFew(const ir::Expr& whole, const ir::Expr& positions, int axis,
                   const mesh::AxisList& axes, decompose::Writer* w);

}  // namespace distir::ops
#endif  // DISTIR_OPS_LOOKUP_H_
