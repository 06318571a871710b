/*!
 * \file unfuse/moved_elements.h
 * \brief Lists operators that a statement which copies elements may be.
 *
 *     out[i, j] = x[i, j + 24]                            R.strided_slice(x, [1], [24], [32])
 *     out[i, j] = x[i, 31 - j]                            R.flip(x, axis=1)
 *     out[i, j] = x[i, j - 2] if 2 <= j < 34 else 0       R.nn.pad(x, (0, 0, 2, 2))
 *     out[i, j] = x[at[i], j]                             R.take(x, at, axis=0)
 *     out[i, j] = x[at[i, j], j]                          R.gather_elements(x, at, axis=0)
 */
#ifndef DISTIR_UNFUSE_MOVED_ELEMENTS_H_
#define DISTIR_UNFUSE_MOVED_ELEMENTS_H_

#include "unfuse/candidate.h"

namespace distir::unfuse {

/*! \brief Lists the operators that a statement of a kernel may be. */
Candidates MovesOfElements(const ir::PrimFunc& kernel, const ir::Stmt& stmt);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_MOVED_ELEMENTS_H_
