/*!
 * \file propagation/constant_positions.h
 * \brief Writes lookups at constant positions that follow each other as slices.
 *
 * Frontends write a roll, or positions of a sequence, as a lookup at constants. What is sent for
 * slices follows from their places; a lookup sums what each shard has.
 *
 * Worked example: R.take(x, [63, 0, 1, .. 62], axis=1), a roll by 1 of 64 tokens, becomes
 *
 *     last = R.strided_slice(x, [1], [63], [64])
 *     others = R.strided_slice(x, [1], [0], [63])
 *     R.concat((last, others), axis=1)
 */
#ifndef DISTIR_PROPAGATION_CONSTANT_POSITIONS_H_
#define DISTIR_PROPAGATION_CONSTANT_POSITIONS_H_

#include <optional>
#include <vector>

#include "ir/node.h"

namespace distir::propagation {

/*! \brief The elements of a constant tensor of 32-bit or 64-bit integers; nullopt for others. */
std::optional<std::vector<int64_t>> ConstantIntegers(const ir::Expr& value);

/*! \brief The function with such lookups as slices; itself where there are none. To be called
 * before tensors are placed. */
ir::Function SliceAtConstants(const ir::Function& function);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_CONSTANT_POSITIONS_H_
