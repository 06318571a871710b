/*!
 * \file unfuse/windows.h
 * \brief Recognises statements that are convolutions or pooling.
 *
 *     p[n, c, h, w] = x[n, c, h - 1, w - 1] if 1 <= h < .. else 0
 *     out[n, f, y, x] += p[n, rc, y * 2 + ry, x * 2 + rx] * k[f, rc, ry, rx]
 *
 * is R.nn.conv2d(x, k, strides=(2, 2), padding=(1, 1, 1, 1)): widths of padding, strides and
 * dilations are read from the indices, layouts are tried.
 */
#ifndef DISTIR_UNFUSE_WINDOWS_H_
#define DISTIR_UNFUSE_WINDOWS_H_

#include "unfuse/candidate.h"

namespace distir::unfuse {

/*! \brief Lists the operators that the statements of a kernel, from `begin` on, may be. */
Candidates Windows(const std::vector<ir::Stmt>& statements, size_t begin);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_WINDOWS_H_
