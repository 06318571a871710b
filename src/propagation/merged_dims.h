/*!
 * \file propagation/merged_dims.h
 * \brief Keeps dimensions apart that reshapes merge, so that each of them can be sharded.
 *
 * Frontends flatten what a product is batched over: (batch, heads, n, k) becomes (batch * heads, n,
 * k) before the matmul and is divided again behind it; a linear layer works on (batch * sequence,
 * columns). A sharding of heads is none of batch * heads, since the heads of one device are not in
 * a row there. So propagation writes
 *
 *     a1 = R.reshape(a, (4 * 8, n))                  // a: (4, 8, n)
 *     b1 = R.matmul(a1, w)
 *     b = R.reshape(b1, (4, 8, m))
 *
 * as
 *
 *     b = R.matmul(a, w)
 *
 * and so all calls between two such reshapes that can be (propagation/separated_call.h). Dimensions
 * of size 1 may stand anywhere between the others.
 */
#ifndef DISTIR_PROPAGATION_MERGED_DIMS_H_
#define DISTIR_PROPAGATION_MERGED_DIMS_H_

#include <vector>

#include "propagation/instances.h"
#include "propagation/separated_call.h"

namespace distir::propagation {

/*!
 * \brief The function with its batched products of two merged tensors written so, whatever is done
 * with the results; the same object if it has none.
 */
ir::Function SeparateBatchDims(const ir::Function& function);

/*!
 * \brief The function with calls written on these dimensions, each major to minor, wherever a
 * reshape merges them; but for calls whose results somebody needs merged. The same object if there
 * is none.
 */
ir::Function SeparateDims(const ir::Function& function, const std::vector<Dims>& apart);

/*!
 * \brief The dimensions of a graph's function that reshapes merge or split though a minor one of
 * them is sharded in a solved program, and the major ones in front of it are not in as many shards
 * as they have elements.
 */
std::vector<Dims> StridedDims(const Program& program, const FunctionGraph& graph);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_MERGED_DIMS_H_
