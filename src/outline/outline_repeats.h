/*!
 * \file outline/outline_repeats.h
 * \brief Outlines repeated bindings, as of a model's layers, to calls of one function.
 *
 *     a = matmul(x, w0)               y = layer(x, w0)
 *     y = relu(a)                     z = layer(y, w1)
 *     b = matmul(y, w1)       ->
 *     z = relu(b)                     def layer(x, w): a = matmul(x, w); return relu(a)
 *
 * Segments compute the same of other variables and constants, and follow each other without
 * anything between. A run of repeats may be cut into segments at several places; it is cut where
 * the fewest values go from one segment to the next. A segment that gives several values returns a
 * tuple. Variables outside of the segments keep their names. Parameters of a function are named as
 * in the first segment, without the number in which names differ: layers_0_w gives layers_w.
 */
#ifndef DISTIR_OUTLINE_OUTLINE_REPEATS_H_
#define DISTIR_OUTLINE_OUTLINE_REPEATS_H_

#include "ir/node.h"

namespace distir::outline {

/*!
 * \brief The module with repeats of every Relax function outlined; the same where there are none.
 * \param min_operators Least number of bindings for which a function is made.
 */
ir::IRModule OutlineRepeats(const ir::IRModule& mod, int64_t min_operators);

}  // namespace distir::outline
#endif  // DISTIR_OUTLINE_OUTLINE_REPEATS_H_
