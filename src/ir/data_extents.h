/*!
 * \file ir/data_extents.h
 * \brief Recognises calls whose result may have fewer rows than TVM's type says, depending on data:
 * the boxes that a non-maximum suppression keeps.
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
