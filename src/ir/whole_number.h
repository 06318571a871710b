/*!
 * \file ir/whole_number.h
 * \brief Recognises constants that are one whole number.
 */
#ifndef DISTIR_IR_WHOLE_NUMBER_H_
#define DISTIR_IR_WHOLE_NUMBER_H_

#include <cstdint>
#include <optional>

#include "ir/node.h"

namespace distir::ir {

/*! \brief The whole number that a constant without dimensions is, of integers or of floats of 32 or
 * 64 bits, or zero in 16 bits; nullopt for others. */
std::optional<int64_t> WholeNumber(const Expr& constant);

}  // namespace distir::ir
#endif  // DISTIR_IR_WHOLE_NUMBER_H_
