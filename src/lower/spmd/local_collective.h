/*!
 * \file lower/spmd/local_collective.h
 * \brief Lowers collectives on DTensors to collectives of local tensors in groups of devices.
 *
 * Worked example on devices 0 .. 3 as a mesh (2, 2):
 *
 *     y = R.dist.all_gather(x, mesh, "S[0], R")    # x: (8, 4) "S[0], S[1]"
 *  -> y = R.ccl.all_gather(x, groups=[[0, 1], [2, 3]], dim=1)
 */
#ifndef DISTIR_LOWER_SPMD_LOCAL_COLLECTIVE_H_
#define DISTIR_LOWER_SPMD_LOCAL_COLLECTIVE_H_

#include <functional>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "lower/local/local_types.h"
#include "lower/spmd/device_groups.h"
#include "mesh/collective.h"

namespace distir::lower {

class LocalCollectives {
 public:
  LocalCollectives(dialect::MeshTable* meshes, DeviceGroups* groups, LocalTypes* types)
      : meshes_(*meshes), groups_(*groups), types_(*types) {}

  /*! \brief A collective of one tensor, whose local value is given; that value itself where no
   * device sends anything. */
  ir::Expr Of(const ir::Call& call, mesh::CollectiveKind kind, const ir::Expr& value);
  /*!
   * \brief A collective of several tensors; gives its results in order.
   * \param tuple Their local values, a tuple or a variable that is one.
   * \param emit Binds a value to a new variable.
   */
  ffi::Array<ir::Expr> OfCombined(const ir::Call& call, mesh::CollectiveKind kind,
                                  const ir::Expr& tuple,
                                  const std::function<ir::Expr(const ir::Expr&)>& emit);
  /*! \brief A collective of a manual region that is no permutation, as Of. */
  ir::Expr OfManual(const ir::Call& call, const ir::Expr& value);
  /*! \brief An all-reduce fused with a norm (dialect/operators/fused_norm.h). */
  ir::Expr OfFusedNorm(const ir::Call& call, const ir::NodeArray<ir::Expr>& args);
  /*! \brief A dispatch of tokens, or what brings them back (dialect/operators/token_dispatch.h). */
  ir::Expr OfTokens(const ir::Call& call, const ir::NodeArray<ir::Expr>& args);

 private:
  mesh::CollectiveStep StepOf(const ir::Call& call, mesh::CollectiveKind kind,
                              const ir::Type& source_ty, const ir::DTensorType& target_ty);
  const DeviceGroups::Groups& GroupsOf(const mesh::CollectiveStep& step,
                                       const ir::DTensorType& target_ty);

  dialect::MeshTable& meshes_;
  DeviceGroups& groups_;
  LocalTypes& types_;
};

}  // namespace distir::lower
#endif  // DISTIR_LOWER_SPMD_LOCAL_COLLECTIVE_H_
