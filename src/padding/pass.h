/*!
 * \file padding/pass.h
 * \brief PadShards: pads dimensions until their shards divide them.
 */
#ifndef DISTIR_PADDING_PASS_H_
#define DISTIR_PADDING_PASS_H_

#include "ir/node.h"

namespace distir::padding {

/*!
 * \brief Pads every dimension that its shards do not divide, and masks what a reduction would see
 * of the padding.
 *
 * Precondition: an operator's tensors are uneven only along factors that may be (PropagateSharding
 * and DecomposeUneven see to it). Postcondition: every dimension divides, but for
 * symbolic sizes that something cannot be padded along (padding/dividing_sizes.h). Parameters of
 * functions, and results of those that are called, have tails of zeros; functions of which they are
 * padded keep their true extents in an attribute. The same module comes back where everything
 * divides.
 *
 * \throws ValueError naming a variable whose operator cannot be padded along an uneven dimension.
 */
ir::IRModule PadShards(const ir::IRModule& mod);

}  // namespace distir::padding
#endif  // DISTIR_PADDING_PASS_H_
