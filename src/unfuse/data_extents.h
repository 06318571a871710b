/*!
 * \file unfuse/data_extents.h
 * \brief Leaves extents open that depend on data although TVM states them.
 *
 * TVM types the boxes that a non-maximum suppression keeps as if all were kept, and its kernel
 * gives as many rows as there are. Behind a match_cast to a type without a shape they are a result
 * like that of R.unique: replicated, and returned as it is.
 *
 *     r = R.vision.all_class_non_max_suppression(..)        r_1 = R.vision.all_class_..(..)
 *     boxes: R.Tensor((6, 3), "int64") = r[0]         ->    r_2 = r_1[0]
 *                                                           r_3 = R.match_cast(r_2,
 * R.Tensor(ndim=2)) r = (r_3, r_1[1]) boxes: R.Tensor(ndim=2) = r[0]
 */
#ifndef DISTIR_UNFUSE_DATA_EXTENTS_H_
#define DISTIR_UNFUSE_DATA_EXTENTS_H_

#include "ir/node.h"

namespace distir::unfuse {

/*! \brief The module with these extents left open; the same module where there are none. */
ir::IRModule LeaveDataExtentsOpen(const ir::IRModule& mod);

}  // namespace distir::unfuse
#endif  // DISTIR_UNFUSE_DATA_EXTENTS_H_
