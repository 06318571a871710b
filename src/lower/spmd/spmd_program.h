/*!
 * \file lower/spmd/spmd_program.h
 * \brief Rewrites one function to the program of one SPMD group of devices.
 *
 * DTensors become local Tensors, collectives get device groups, what lies on other meshes is left
 * out: parameters, bindings, tuple fields and results of other groups. A transfer becomes a send,
 * a receive, or both.
 *
 * Worked example, mesh[0] of devices 0, 1 and mesh[1] of devices 2, 3; the programs of both groups:
 *
 *     h = R.matmul(x, v)           # mesh[0]      h = R.matmul(x, v); R.ccl.send(h, plan=..)
 *     g = R.dist.transfer(h, ..)   # mesh[1]      g = R.ccl.recv(plan=..); y = R.nn.relu(g)
 *     y = R.nn.relu(g)             # mesh[1]
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

namespace distir::lower {

struct SpmdContext {
  dialect::MeshTable* meshes;
  TransferPlans* plans;
  DeviceGroups* groups;
  /*! \brief The meshes of the group, or null when there is one group and everything is present. */
  const std::set<int>* roots;
  /*! \brief Index of the function, if there are several groups. */
  const MeshIndex* index = nullptr;
  /*! \brief The group's version of a callee: null GlobalVar when it is no distributed function,
   * nullopt when nothing of it is present. */
  std::function<std::optional<ir::GlobalVar>(const ir::GlobalVar&)> callee;
  /*! \brief Virtual stages of an entry on several meshes; otherwise null. */
  const VirtualStages* virtual_stages = nullptr;
};

/*! \brief True if any tensor of a type lies on the group's meshes; true for types without DTensors.
 */
bool IsPresent(const ir::Type& type, const SpmdContext& context);

/*! \brief Program of each worker of an SPMD group. */
struct SpmdProgram {
  ir::Function function;
  /*! \brief Symbolic dimensions that no parameter on the group's meshes defines: the function takes
   * their global values as a last parameter, a shape. */
  std::vector<std::string> sizes;
  /*! \brief Indices of the function's parameters, and of its result's leaves, on the worker. */
  std::vector<int> params, results;
  /*! \brief Per binding of the body the virtual stage in which it runs; empty: all in the same. */
  std::vector<int> virtual_stages;
};

/*!
 * \brief The function as one worker of the group runs it.
 * \throws ValueError naming a value that this group needs but that no transfer brings.
 */
SpmdProgram MakeSpmdProgram(const ir::Function& function, const std::string& name,
                            const SpmdContext& context);

}  // namespace distir::lower
#endif  // DISTIR_LOWER_SPMD_SPMD_PROGRAM_H_
