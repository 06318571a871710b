/*!
 * \file padding/scalar.h
 * \brief Makes scalar constants for programs.
 *
 * TVMScript has constants of signed integers, booleans, float32 and float64. A number of another
 * type is written in one of these and converted by the program: bfloat16 in float32, uint8 in
 * int64.
 */
#ifndef DISTIR_PADDING_SCALAR_H_
#define DISTIR_PADDING_SCALAR_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/dtype.h>

#include "rules/tails.h"

namespace distir::padding {

/*! \brief The type that numbers of a type are written in. */
DLDataType WrittenAs(DLDataType dtype);

/*! \brief A number in a type that numbers are written in. */
tvm::ffi::Any ScalarOf(DLDataType written, int64_t number);

/*! \brief Fill of a tail of elements of `dtype`, in the type that it is written in. */
tvm::ffi::Any FillOf(DLDataType dtype, rules::Tail tail);

}  // namespace distir::padding
#endif  // DISTIR_PADDING_SCALAR_H_
