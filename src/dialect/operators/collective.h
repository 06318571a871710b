/*!
 * \file dialect/operators/collective.h
 * \brief The collective operators, on DTensors (`R.dist.*`) and on local tensors (`R.ccl.*`).
 *
 * On DTensors a collective states the mesh and placement it leads to; the placement it comes from
 * is its argument's type. Both together say which axes move where:
 *
 *     # lv0: DTensor(.., "S[0], S[1]")
 *     lv1: DTensor(.., "S[0], R") = R.dist.all_gather(lv0, "mesh[0]", "S[0], R")
 *
 * Reductions also name `reduce_axes` (axes of the target's mesh over which the argument is partial)
 * and `reduction`. On local tensors a collective names device groups and tensor dimensions:
 *
 *     # lv0: Tensor((4, 4))
 *     lv1: Tensor((4, 8)) = R.ccl.all_gather(lv0, groups=[[0, 1], [2, 3]], dim=1)
 */
#ifndef DISTIR_DIALECT_OPERATORS_COLLECTIVE_H_
#define DISTIR_DIALECT_OPERATORS_COLLECTIVE_H_

#include <optional>
#include <string>
#include <vector>

#include "ir/node.h"
#include "mesh/collective.h"

namespace distir::dialect {

namespace ffi = tvm::ffi;

using mesh::CollectiveKind;
using mesh::CollectiveName;

/*! \brief The kind of a `relax.dist.*` collective operator, or nullopt. */
std::optional<CollectiveKind> DTensorCollective(const ir::Expr& op);
/*! \brief The kind of a `relax.ccl.*` operator registered here, or nullopt. */
std::optional<CollectiveKind> LocalCollective(const ir::Expr& op);

/*! \brief A DTensor collective; reduce_axes are axes of target's device mesh. */
ir::Call MakeCollective(CollectiveKind kind, const ir::Expr& value, const ir::DTensorType& target,
                        const std::vector<int>& reduce_axes = {},
                        mesh::Reduction reduction = mesh::Reduction::kNone);
/*!
 * \brief One collective of several values: an all-reduce, all-gather or reduce-scatter of a tuple,
 * which gives a tuple. Its attribute `placement` lists one placement per field; device mesh,
 * reduction and axes are the same for all.
 *
 *     lv: Tuple(..) = R.dist.all_reduce((a, b), "mesh[0]", ["R", "S[0]"], reduce_axes=[1], ..)
 */
ir::Call MakeCombinedCollective(CollectiveKind kind, const ir::NodeArray<ir::Expr>& values,
                                const std::vector<ir::DTensorType>& targets,
                                const std::vector<int>& reduce_axes = {},
                                mesh::Reduction reduction = mesh::Reduction::kNone);
/*!
 * \brief The type that a value of `type` has after a collective of this kind with the call's
 * attributes.
 * \throws ValueError where the collective does not lead there.
 */
ir::Type InferCollective(const ir::Call& call, CollectiveKind kind, const ir::Type& type);
/*! \brief True if collectives of a kind take tuples. */
bool CanCombine(CollectiveKind kind);
/*! \brief R.dist.redistribute(value, device_mesh, placement). */
ir::Call MakeRedistribute(const ir::Expr& value, const ir::DTensorType& target);

/*! \brief The target of a DTensor collective, redistribute or annotate_sharding call, from its
 * attributes. */
ir::DeviceMesh TargetMesh(const ir::Call& call);
ir::Placement TargetPlacement(const ir::Call& call);
std::vector<int> ReduceAxes(const ir::Call& call);
mesh::Reduction ReductionOf(const ir::Call& call);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_COLLECTIVE_H_
