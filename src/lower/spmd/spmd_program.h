/*!
 * \file lower/spmd/spmd_program.h
 * \brief Rewrites one function to what the devices of one SPMD group run.
 *
 * DTensors become local Tensors, collectives get device groups, what lies on other meshes is left
 * out: parameters, bindings, tuple fields and results of other groups. A transfer becomes a send,
 * a receive, or both.
 */
#ifndef DISTIR_LOWER_SPMD_SPMD_PROGRAM_H_
#define DISTIR_LOWER_SPMD_SPMD_PROGRAM_H_

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "lower/local/local_types.h"
#include "lower/spmd/device_groups.h"
#include "lower/spmd/transfer_plans.h"
#include "lower/stages/mesh_index.h"
#include "lower/stages/virtual_stages.h"

namespace distir {
namespace lower {

struct WorkerContext {
  dialect::MeshTable* meshes;
  TransferPlans* plans;
  DeviceGroups* groups;
  /*! \brief The meshes of the group, or null when there is one group and everything is present. */
  const std::set<int>* roots;
  /*! \brief Of the function, where there are several groups. */
  const MeshIndex* index = nullptr;
  /*! \brief The worker's version of a callee: null GlobalVar when it is no distributed function,
   * nullopt when nothing of it is present. */
  std::function<std::optional<ir::GlobalVar>(const ir::GlobalVar&)> callee;
  /*! \brief Of an entry on several meshes; otherwise null. */
  const VirtualStages* virtual_stages = nullptr;
};

/*! \brief Whether any tensor of a type lies on the class's meshes; true for types without DTensors.
 */
bool IsPresent(const ir::Type& type, const WorkerContext& context);

/*! \brief What each worker of an SPMD group runs. */
struct WorkerFunction {
  ir::Function function;
  /*! \brief Symbolic dimensions that no parameter on the class's meshes defines: the function takes
   * their global values as a last parameter, a shape. */
  std::vector<std::string> sizes;
  /*! \brief What of the function's parameters, and of the leaves of its result, the worker has. */
  std::vector<int> params, results;
  /*! \brief Per binding of the body the virtual stage in which it runs; empty: all in the same. */
  std::vector<int> virtual_stages;
};

/*!
 * \brief The function as one worker of the group runs it.
 * \throws ValueError naming a value that this group needs but that no transfer brings.
 */
WorkerFunction MakeSpmdProgram(const ir::Function& function, const std::string& name,
                               const WorkerContext& context);

}  // namespace lower
}  // namespace distir
#endif  // DISTIR_LOWER_SPMD_SPMD_PROGRAM_H_
