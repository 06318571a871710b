/*!
 * \file propagation/copied_heads.h
 * \brief Finds weights that an annotation cuts within heads, because there are fewer heads than
 * shards.
 *
 * Plans shard queries, keys and values alike, but grouped queries have fewer heads of keys. Worked
 * example, 8 heads of queries and 2 of keys, each of 4 columns, in 4 shards:
 *
 *     wq: (64, 32)  [- | x]      q: 8 heads of 4 columns    [x | -]               2 heads per shard
 *     wk: (64, 8)   [- | x]      k: 2 heads of 4 columns    [x:(1)2 | x:(2)2]     half a head
 *
 * The product of q and k has heads over x, so halves of k would be exchanged in every step. Here
 * wk is *copied*: what is stated of its columns is taken back, and they are open. They follow the
 * queries, [- | x:(1)2], so pairs of devices have copies of a head of wk and of k. If the heads
 * of queries cannot be divided so, every device has all of k.
 *
 * Such a weight is found where it meets a larger one, as wk meets wq in the product of q and k: in
 * a call of which one operand has the columns of the smaller weight on one factor, and another
 * operand has the columns of the larger weight on another factor, over the same axes.
 *
 * Several parameters may be one weight, as numbers of four bits and their scales, of which a kernel
 * makes it: a value that is made of parameters alone, element by element, is a weight, as large as
 * the largest of them.
 *
 * These are left as they are stated:
 *  - a parameter that is the first of several operands of an operator, as x in matmul(x, w). It is
 *    no weight: tokens, for example, meet experts that are sharded over the same axes;
 *  - a parameter that nothing is multiplied by, and that is added to no product, as the ids of a
 *    scatter: it is no weight either;
 *  - a weight that has a dimension for heads;
 *  - a weight that is gathered for its own product, as those of FSDP are, or that is multiplied by
 *    something sharded over these axes;
 *  - DTensor types of parameters, and annotations of other values than parameters.
 */
#ifndef DISTIR_PROPAGATION_COPIED_HEADS_H_
#define DISTIR_PROPAGATION_COPIED_HEADS_H_

#include <vector>

#include "propagation/instances.h"

namespace distir::propagation {

/*! \brief A dimension of which an annotation says something. */
struct StatedDim {
  const Source* source;
  int dim;
  bool operator==(const StatedDim& other) const {
    return source == other.source && dim == other.dim;
  }
};

/*!
 * \brief Stated dimensions of weights that a solved program should copy.
 * \return The dimensions to open, in program order.
 */
std::vector<StatedDim> CopiedHeads(const Program& program);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_COPIED_HEADS_H_
