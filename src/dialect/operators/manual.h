/*!
 * \file dialect/operators/manual.h
 * \brief Manual regions: parts of a program that are written per device, with explicit collectives.
 *
 * A value enters a region over some axes of a mesh and leaves it again. In the region its tensor is
 * that of one device along these axes, the manual ones, and global along all others, which
 * propagation shards as anywhere:
 *
 *     # x: Tensor((8, 16)), mesh[0]: (dp=2, tp=4)
 *     a: Tensor((8, 4)) = R.dist.enter_manual(x, "mesh[0]", "R, S[1]", manual_axes=[1])
 *     b: Tensor((8, 4)) = R.dist.manual_all_reduce(a, device_mesh="mesh[0]", axes=[1],
 *                                                  reduction="sum")
 *     y: Tensor((8, 4)) = R.dist.leave_manual(b, "mesh[0]", "R, R", manual_axes=[1])
 *
 * The placement has entries for manual axes only. Once propagated, values inside lie on the mesh of
 * the region (mesh/region.h), here dp=2, and enter_manual and leave_manual state the type of their
 * result. So no pass shards them along a manual axis, or takes them for equal along one. Outside,
 * the automatic axes of a dimension stand behind the manual ones: enter_manual of "S[0], S[0]" with
 * axis 0 manual gives "S[0]". Both ends divide evenly. On a worker they are the value itself.
 *
 * The collectives of a region run over the named axes of the mesh that the region is in, major to
 * minor as listed. Values that every device has may be used in a region without entering it.
 */
#ifndef DISTIR_DIALECT_OPERATORS_MANUAL_H_
#define DISTIR_DIALECT_OPERATORS_MANUAL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "dialect/mesh_table.h"
#include "ir/node.h"
#include "mesh/sharding.h"

namespace distir::abi {
enum class Collective : uint8_t;
}  // namespace distir::abi

namespace distir::dialect {

bool IsEnterManual(const ir::Expr& op);
bool IsLeaveManual(const ir::Expr& op);
/*! \brief True if a call is one of these two; also of null. */
bool CrossesRegion(const ir::Call& call);
/*! \brief The region that a value enters or leaves. */
const ManualRegion& RegionOfCrossing(const ir::Call& crossing, MeshTable* meshes);
/*! \brief The manual axes of each dimension of the tensor outside, on the outer root. */
std::vector<mesh::AxisList> ManualDims(const ir::Call& crossing, MeshTable* meshes);
/*! \brief Copies a crossing for another value, with a stated type. */
ir::Call MakeCrossing(const ir::Call& like, const ir::Expr& value, const ir::DTensorType& target);
/*! \brief The type that a crossing of a DTensor states.
 * \throws ValueError where that does not follow from its argument. */
ir::Type InferCrossing(const ir::Call& crossing);
/*! \brief Enters a region with a value that every device along its manual axes has. */
ir::Call MakeImplicitEntry(const ir::Expr& value, const ManualRegion& region,
                           const ir::DTensorType& target, MeshTable* meshes);

/*! \brief The collective of a region that an operator is, or nullopt: kPermute sends whole values.
 */
std::optional<abi::Collective> ManualCollective(const ir::Expr& op);
/*! \brief Its axes on the root of its mesh, in the order of their list. */
mesh::AxisList ManualAxes(const ir::Call& collective, MeshTable* meshes);
/*! \brief Pairs of a permutation: (source, target), both numbers along the axes. */
std::vector<std::pair<int64_t, int64_t>> PairsOf(const ir::Call& permutation);
/*! \brief An attribute that is an integer. \throws ValueError where it is missing. */
int ManualInteger(const ir::Call& call, const char* key);
/*! \brief Type inference on Tensors. */
ir::Type InferManualCollective(const ir::Call& call);
/*! \brief \throws ValueError where its axes are not manual on the root that its operand lies on. */
void RequireInRegion(const ir::Call& collective, int root, const std::string& name,
                     MeshTable* meshes);

/*! \brief The meshes of a module with the regions of all its functions. */
MeshTable TableWithRegions(const ir::IRModule& mod);

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_OPERATORS_MANUAL_H_
