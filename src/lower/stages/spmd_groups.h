/*!
 * \file lower/stages/spmd_groups.h
 * \brief SPMD groups of devices in a program whose values lie on several meshes.
 *
 * Devices that belong to the same meshes run one SPMD program: they form a group. A program on one
 * mesh has one group; a pipeline of two disjoint meshes has two, its stages.
 */
#ifndef DISTIR_LOWER_STAGES_SPMD_GROUPS_H_
#define DISTIR_LOWER_STAGES_SPMD_GROUPS_H_

#include <set>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/module/call_graph.h"
#include "ir/node.h"
#include "lower/stages/mesh_index.h"

namespace distir::lower {

struct SpmdGroup {
  std::set<int> roots;              // the meshes that its devices belong to
  std::vector<int64_t> device_ids;  // sorted
};

/*! \brief The root meshes that a function's values lie on, callees included, for every Relax
 * function of a module. */
FunctionRoots RootsOfFunctions(const ir::IRModule& mod, const ir::CallGraph& calls,
                               dialect::MeshTable* meshes);
/*! \brief The groups of the devices of these meshes, ordered by their first device. */
std::vector<SpmdGroup> SpmdGroups(const std::set<int>& roots, const dialect::MeshTable& meshes);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_STAGES_SPMD_GROUPS_H_
