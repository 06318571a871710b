/*!
 * \file propagation/pass.h
 * \brief PropagateSharding, and a preview of its decisions for passes that run before it.
 */
#ifndef DISTIR_PROPAGATION_PASS_H_
#define DISTIR_PROPAGATION_PASS_H_

#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/node.h"
#include "mesh/sharding.h"

namespace distir::propagation {

/*!
 * \brief Propagates annotations to DTensor types, across calls: every value of a function that
 * takes part becomes a DTensor, with redistributions where two sides disagree. Returns the module
 * itself if nothing states a sharding.
 *
 * \throws ValueError where a stated sharding does not fit its tensor.
 */
ir::IRModule PropagateSharding(const ir::IRModule& mod);

/*! \brief Per tensor dimension the mesh axes that shard it, major to minor. */
using AxesOfDims = std::vector<std::vector<int>>;

/*! \brief Shardings of each variable's tensors. */
using VarShardings = std::unordered_map<const tvm::ffi::Object*, std::vector<AxesOfDims>>;

/*! \brief A sharding on a mesh by whole axes of it; null where it is sharded by parts of axes. */
std::optional<AxesOfDims> WholeAxes(const mesh::Mesh& mesh, const mesh::Sharding& sharding);

/*!
 * \brief The shardings that PropagateSharding gives the variables of one function that states
 * shardings, itself or in what it calls. A sharding that whole axes of `view` cannot express counts
 * as replicated.
 * \throws ValueError as PropagateSharding.
 */
VarShardings SolvedShardings(const ir::IRModule& mod, const ir::GlobalVar& function,
                             const ir::DeviceMesh& view);

}  // namespace distir::propagation
#endif  // DISTIR_PROPAGATION_PASS_H_
