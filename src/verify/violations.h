/*!
 * \file verify/violations.h
 * \brief Postconditions of the passes, as code, for each phase.
 *
 * Each function returns all violations, one line each that names function and variable; none: the
 * module is in that phase. Functions without DTensors take no part and are not looked at, except
 * for their calls.
 */
#ifndef DISTIR_VERIFY_VIOLATIONS_H_
#define DISTIR_VERIFY_VIOLATIONS_H_

#include <string>
#include <vector>

#include "ir/node.h"

namespace distir::verify {

/*!
 * \brief After PropagateSharding:
 * - no annotate_sharding is left;
 * - every tensor is a DTensor, except the result of a call that takes no tensors (R.zeros), which
 *   every device makes alike, and what only renames it;
 * - the arguments of an operator lie on the devices of its result; redistributions and transfers
 *   lead from one device set to another;
 * - arguments of a function are placed as its parameters are;
 * - every DeviceMesh is an entry of the module's global infos, by identity.
 */
std::vector<std::string> VerifyPropagated(const ir::IRModule& mod);
/*!
 * \brief After LegalizeRedistribute, in addition:
 * - every static dimension divides into its shards;
 * - no redistribute, except of a Tensor to a replicated DTensor, and no R.ccl.allreduce;
 * - the kernel of a local view takes the shards that a device has;
 * - no call has a decomposed factor that is sharded (DecomposeSharded);
 * - a value that is partial is used by reductions, and by what commutes with its reduction.
 */
std::vector<std::string> VerifyLegalized(const ir::IRModule& mod);
/*! \brief After LowerDistIR: no DTensor and no R.dist operator anywhere. */
std::vector<std::string> VerifyLowered(const ir::IRModule& mod);

}  // namespace distir::verify
#endif  // DISTIR_VERIFY_VIOLATIONS_H_
