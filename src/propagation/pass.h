/*!
 * \file propagation/pass.h
 * \brief What PropagateSharding decides, for passes that need to know before it runs.
 */
#ifndef DISTIR_PROPAGATION_PASS_H_
#define DISTIR_PROPAGATION_PASS_H_

#include <unordered_map>
#include <vector>

#include "ir/node.h"

namespace distir {
namespace propagation {

/*! \brief By variable, for each tensor of it, the dimension that each axis of a mesh shards, -1 for
 * none. */
using VarPlacements = std::unordered_map<const tvm::ffi::Object*, std::vector<std::vector<int>>>;

/*!
 * \brief The placements that PropagateSharding gives the variables of one function that states
 * shardings, itself or in what it calls. What `view` itself cannot express counts as whole.
 * \throws ValueError as PropagateSharding.
 */
VarPlacements SolvedPlacements(const ir::IRModule& mod, const ir::GlobalVar& function,
                               const ir::DeviceMesh& view);

}  // namespace propagation
}  // namespace distir
#endif  // DISTIR_PROPAGATION_PASS_H_
