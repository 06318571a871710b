/*!
 * \file propagation/batch_dims.h
 * \brief Keeps the batch dimensions of batched matrix products apart.
 *
 * Frontends flatten what a product is batched over: (batch, heads, n, k) becomes (batch * heads, n,
 * k) before the matmul and is divided again behind it. A sharding of heads is none of batch *
 * heads, since the heads of one device are not in a row there. So propagation first writes
 *
 *     a1 = R.reshape(a, (4 * 8, n, k))                  // a: (4, 8, n, k)
 *     b1 = R.reshape(b, (4 * 8, k, m))                  // b: (4, 8, k, m)
 *     c1 = R.matmul(a1, b1)
 *     c = R.reshape(c1, (4, 8, n, m))
 *
 * as
 *
 *     c1 = R.matmul(a, b)
 *     c = R.reshape(c1, (4, 8, n, m))
 *
 * where every dimension can be sharded. So are a softmax and elementwise operators of such a
 * product, which stand between the two products of attention. Dimensions of size 1 may stand
 * anywhere between the others. Both computations are the same, number by number, whatever is done
 * with the results.
 */
#ifndef DISTIR_PROPAGATION_BATCH_DIMS_H_
#define DISTIR_PROPAGATION_BATCH_DIMS_H_

#include "ir/node.h"

namespace distir::propagation {

/*! \brief The function with its batched products written so; the same object if it has none. */
ir::Function SeparateBatchDims(const ir::Function& function);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_BATCH_DIMS_H_
