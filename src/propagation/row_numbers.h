/*!
 * \file propagation/row_numbers.h
 * \brief Recognises lookups of, and writes to, each row's own elements: their first positions count
 * the rows.
 *
 * Worked example: x[arange(n), p] of x (n, m, k) and p (n,),
 *
 *     rows = R.arange(0, n, 1)
 *     R.index_tensor(x, (rows, p))
 *
 * looks up row i at p[i], which is R.gather_nd(x, R.expand_dims(p, 1), batch_dims=1): if rows are
 * sharded, each device looks up in its own. R.gather_nd of positions that a stack or a concat has
 * put together with row numbers in front is such a lookup, too. R.scatter_nd and R.index_put of one
 * position behind the row's number become R.scatter_elements along the second dimension.
 */
#ifndef DISTIR_PROPAGATION_ROW_NUMBERS_H_
#define DISTIR_PROPAGATION_ROW_NUMBERS_H_

#include "ir/node.h"

namespace distir::propagation {

/*! \brief The function with such calls batched over rows; itself where there are none. To be
 * called before tensors are placed. */
ir::Function BatchOverRows(const ir::Function& function);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_ROW_NUMBERS_H_
