/*!
 * \file ir/packed_function.h
 * \brief Attributes of packed functions that a program calls; TVM's passes keep the function of a
 * call as it is, with its attributes.
 */
#ifndef DISTIR_IR_PACKED_FUNCTION_H_
#define DISTIR_IR_PACKED_FUNCTION_H_

#include "ir/node.h"

namespace distir::ir {

/*! \brief The packed function that a call invokes, itself or by an operator of Relax such as
 * R.call_dps_packed; null for other calls. */
ExternFunc PackedFunctionOf(const Call& call);
/*! \brief An attribute of a packed function; None where it is absent. */
ffi::Any GetAttr(const ExternFunc& function, const char* key);
/*! \brief A copy of a packed function with an attribute. */
ExternFunc WithAttr(const ExternFunc& function, const char* key, const ffi::Any& value);

}  // namespace distir::ir
#endif  // DISTIR_IR_PACKED_FUNCTION_H_
