/*!
 * \file ir/data_extents.h
 * \brief Handles operators whose result has an extent that depends on data, although TVM types it.
 */
#ifndef DISTIR_IR_DATA_EXTENTS_H_
#define DISTIR_IR_DATA_EXTENTS_H_

#include "ir/node.h"

namespace distir::ir {

/*! \brief True if the first result of a call, a tuple, may have fewer rows than its type says: the
 * boxes that a non-maximum suppression keeps, which TVM types as if all were kept. Also of null. */
bool HasDataExtent(const Call& call);

/*! \brief A tensor of the same rank and dtype, of unknown shape. */
TensorType WithoutShape(const TensorType& type);

}  // namespace distir::ir
#endif  // DISTIR_IR_DATA_EXTENTS_H_
