/*!
 * \file ops/positions.h
 * \brief What positions of lookups and writes mean that are negative or outside of a dimension,
 * written as operators: the same as the kernels' (compile/kernels/legalizations/positions.py).
 */
#ifndef DISTIR_OPS_POSITIONS_H_
#define DISTIR_OPS_POSITIONS_H_

#include "decompose/writer.h"

namespace distir::ops {

/*! \brief An extent, as a scalar. */
ir::Expr NumberOf(const ir::Expr& size, DLDataType dtype, decompose::Writer* w);
/*! \brief Positions in a dimension of `size`: negative ones count from the end. They are of int32
 * or int64. */
ir::Expr FromBegin(const ir::Expr& positions, const ir::Expr& size, decompose::Writer* w);
/*! \brief True where positions lie in a dimension. */
ir::Expr AreWithin(const ir::Expr& positions, const ir::Expr& size, decompose::Writer* w);
/*! \brief The nearest positions in a dimension. */
ir::Expr Nearest(const ir::Expr& positions, const ir::Expr& size, decompose::Writer* w);

}  // namespace distir::ops
#endif  // DISTIR_OPS_POSITIONS_H_
