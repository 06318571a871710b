/*!
 * \file mesh/sharding.h
 * \brief Pure algebra of device meshes and shardings; knows nothing of IR.
 *
 * A mesh is an N-D array of device ids. A tensor dimension is sharded by a list of axis references,
 * major to minor; an axis reference is a whole mesh axis or a *sub-axis* of it: an axis of size n
 * is viewed as [pre_size, size, n / (pre_size * size)] and the reference names the middle part.
 * Writing x:(pre)size, an axis x of size 8 is the same as x:(1)2, x:(2)2, x:(4)2 in that order
 * (major to minor).
 *
 * Invariants of a valid Sharding on a mesh: every reference lies within its axis (pre_size * size
 * divides the axis size, size > 1), and no two references overlap, in dims and partial taken
 * together.
 * Canonical form: adjacent references x:(p)s, x:(p*s)t in one list are merged to x:(p)s*t. Two
 * lists index the shards of all devices alike exactly if their canonical forms are equal; every
 * function here that returns a list returns it in canonical form, and none needs it on input.
 *
 * Worked example: mesh (2, 4), axes x, y; tensor (8, 16) sharded [x | y]: the device at coordinate
 * (1, 2) holds block (1, 2) of grid (2, 4), local shape (4, 4). Sharded [y:(1)2 | -]: two blocks of
 * 4 rows, the device at (1, 2) holds block 1 (2 / 2 = 1).
 */
#ifndef DISTIR_MESH_SHARDING_H_
#define DISTIR_MESH_SHARDING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/small_vector.h"

namespace distir::mesh {

/*!
 * \brief An N-D array of devices: device_ids is row-major over shape and holds distinct ids.
 *
 * Names of axes are for texts only: meshes that differ in nothing else are equal.
 */
struct Mesh {
  std::vector<int64_t> shape;
  std::vector<int64_t> device_ids;
  std::vector<std::string> axis_names = {};  // one per axis, or none

  int64_t size() const;  // product of shape
  int ndim() const { return static_cast<int>(shape.size()); }
  /*! \brief Coordinates of the device at flat position (index into device_ids). */
  std::vector<int64_t> Coordinates(int64_t position) const;
  /*! \brief Flat position of a device id, or -1. */
  int64_t PositionOf(int64_t device_id) const;
  /*! \brief Name of an axis in texts: its own, or x, y, z, w, a4, a5, ... if it has none. */
  std::string AxisName(int axis) const;
  bool operator==(const Mesh& other) const;
};

/*! \brief A mesh axis or a sub-axis of it; see the file comment. */
struct AxisRef {
  int axis;
  int64_t pre_size;
  int64_t size;
  bool operator==(const AxisRef& other) const;
  bool operator<(const AxisRef& other) const;  // by axis, pre_size, size
};

/*! \brief Major to minor. Nearly all dimensions are sharded over one axis or none. */
using AxisList = SmallVector<AxisRef, 1>;

/*! \brief Reduction of a partial tensor's values. kNone: the tensor is not partial. */
enum class Reduction : int { kNone = 0, kSum, kMax, kMin, kProd, kMean };
const char* ReductionName(Reduction kind);             // "none", "sum", ...
Reduction ReductionFromName(const std::string& name);  // throws ValueError naming the unknown kind

struct Sharding {
  std::vector<AxisList> dims;  // one list per tensor dimension
  AxisList partial;            // axes over which the value still has to be reduced
  Reduction reduction = Reduction::kNone;

  static Sharding Replicated(int ndim);
  bool IsReplicated() const;  // no axes anywhere
  /*! \brief Equal member by member; compare Canonical forms or use SameLayout to compare meaning.
   */
  bool operator==(const Sharding& other) const;
  bool operator!=(const Sharding& other) const { return !(*this == other); }
};

/*! \brief A whole axis of the mesh as a reference. */
AxisRef FullAxis(const Mesh& mesh, int axis);
/*! \brief Product of sizes. */
int64_t NumShards(const AxisList& axes);
/*!
 * \brief True if two references share a part of an axis, that is, are not parts of one split of it.
 * References of one axis are disjoint if one ends (pre_size * size) at a divisor of where the other
 * begins (pre_size): x:(1)2 and x:(2)3 are disjoint, x:(1)2 and x:(3)2 of an axis of 6 are not.
 */
bool Overlaps(const AxisRef& a, const AxisRef& b);
bool Overlaps(const AxisList& a, const AxisList& b);
/*! \brief Merges adjacent references that continue each other and drops references of size 1. */
AxisList Canonical(const AxisList& axes);
/*! \brief Also sorts the partial axes, which are a set, and clears the reduction if there are none.
 */
Sharding Canonical(const Sharding& sharding);
/*!
 * \brief The longest common major prefix of two lists, splitting references where needed.
 * Example: [x] and [x:(1)2, y] for x of size 4 have the prefix [x:(1)2].
 */
AxisList CommonPrefix(const AxisList& a, const AxisList& b);
/*! \brief True if `prefix` is a major prefix of `axes` (with splitting, as in CommonPrefix). */
bool IsPrefix(const AxisList& prefix, const AxisList& axes);
/*! \brief Axes after `prefix` in `axes`; requires IsPrefix. */
AxisList RemovePrefix(const AxisList& axes, const AxisList& prefix);
/*!
 * \brief The parts of `axes` that overlap none of `taken`, up to the first that does (a major
 * prefix). Example: [y, x of 4] and taken [x:(2)2] give [y, x:(1)2].
 */
AxisList PrefixDisjointFrom(const AxisList& axes, const AxisList& taken);
/*!
 * \brief Every part of the mesh's axes not covered by `used`, in mesh order, as maximal references.
 * References in `used` may overlap each other.
 */
AxisList Complement(const Mesh& mesh, const AxisList& used);

/*!
 * \brief The notation of users: what shards one tensor dimension, as Python prints it. None,
 * 'dp', or ('dp', 'tp') from major to minor; a sub-axis is 'tp:(1)2'.
 */
std::string ToString(const AxisList& axes, const Mesh& mesh);
/*!
 * \brief One entry per tensor dimension: ('dp', None), ('dp',), (). What is partial says so behind:
 * "('dp', None), partial sum over 'tp'".
 */
std::string ToString(const Sharding& sharding, const Mesh& mesh);
/*! \brief "(dp=2, tp=4) of devices 0..7" or "(x=2, y=2) of devices 0, 2, 1, 3". */
std::string ToString(const Mesh& mesh);

/*!
 * \brief Checks that sizes are positive and that there is one distinct, non-negative id per device.
 * \throws ValueError naming the axis or the device id at fault.
 */
void CheckValid(const Mesh& mesh);
/*!
 * \brief Checks the invariants of the file comment, and that partial axes come with a reduction.
 * \throws ValueError naming the axis reference and the tensor dimension at fault.
 */
void CheckValid(const Mesh& mesh, const Sharding& sharding);

/*!
 * \brief Index of the shard along `axes` held by the device at `coordinates` of its mesh (0 when
 * empty).
 */
int64_t ShardIndex(const Mesh& mesh, const AxisList& axes, const std::vector<int64_t>& coordinates);

/*!
 * \brief Devices grouped along `axes`: devices in one group differ only in their coordinates along
 * `axes`; within a group they are ordered by ShardIndex(axes). Groups are ordered by their first
 * device's position. The references must not overlap each other.
 * \return device ids.
 */
std::vector<std::vector<int64_t>> DeviceGroups(const Mesh& mesh, const AxisList& axes);

/*!
 * \brief Expresses each axis of `view` by axis references of `root` (major to minor), if `view` is
 * a reshape, transpose or refinement of `root` over the same devices that references can express;
 * nullopt if it is not (as (3, 2) over (2, 3): 2 cuts across the axis of 3).
 * Example: root (2, 4) ids 0..7, view (4, 2) ids 0 4 1 5 2 6 3 7: {[y], [x]}. View (2, 2, 2) ids
 * 0..7: {[x], [y:(1)2], [y:(2)2]}. View (8): {[x, y]}. An axis of size 1 gives [].
 */
std::optional<std::vector<AxisList>> Relate(const Mesh& view, const Mesh& root);

/*! \brief A mesh together with the tensor dimension that each of its axes shards (-1: none). */
struct MeshPlacement {
  Mesh mesh;
  std::vector<int> axis_to_dim;
};

/*!
 * \brief TVM's form of a sharding: one tensor dimension or none per mesh axis; several axes on one
 * dimension nest in mesh order. Three meshes are tried in this order, so that few distinct ones
 * arise and a transposed one only where it is needed:
 * 1. the root mesh itself;
 * 2. its coarsest split: axes in root order, cut at the ends of the references. [y:(2)2 | -] on
 *    root (2, 4) is (-1, -1, 0) on shape (2, 2, 2) with the devices of the root in their order;
 * 3. a transposed split: references in the order of the dims, then the complement. [y, x | -] on
 *    root (2, 4) is (0, 0) on shape (4, 2), devices 0 4 1 5 2 6 3 7.
 * Adjacent parts of one axis are merged where they serve the same dimension or none. The partial
 * axes are ignored.
 *
 * \param apart References that are to be axes of their own in the mesh, such as those that a
 * collective reduces over; each lies within one reference of a dimension or outside of all.
 * Example: [x | -] on root (4), apart {x:(2)2}, is (0, 0) on shape (2, 2).
 */
MeshPlacement ToPlacement(const Mesh& root, const Sharding& sharding, const AxisList& apart = {});
/*!
 * \brief True if `view` itself (not another view) can express the sharding, given on `root`; then
 * its axis_to_dim.
 */
std::optional<std::vector<int>> ToPlacementOn(const Mesh& view, const Mesh& root,
                                              const Sharding& sharding);
/*!
 * \brief The inverse: the sharding, on `root`, of a tensor of `ndim` dimensions placed on `view`.
 * \throws ValueError when a dimension is out of range or `view` is no view of `root`.
 */
Sharding FromPlacement(const Mesh& view, const std::vector<int>& axis_to_dim, int ndim,
                       const Mesh& root);

/*! \brief The least extent not below `extent` that divides into so many shards. */
inline int64_t EvenExtent(int64_t extent, int64_t shards) {
  return (extent + shards - 1) / shards * shards;
}

/*!
 * \brief Shape of one shard.
 * \throws ValueError "dimension 1 of size 10 does not divide into 4 shards" where it does not
 * divide, or where the sharding is for another number of dimensions.
 */
std::vector<int64_t> LocalShape(const std::vector<int64_t>& shape, const Sharding& sharding);

/*!
 * \brief Canonical test that two shardings place the same block on every device of the mesh. A
 * partial value is not the value itself, so partial axes and their reduction have to agree, too.
 */
bool SameLayout(const Mesh& mesh, const Sharding& a, const Sharding& b);

}  // namespace distir::mesh
#endif  // DISTIR_MESH_SHARDING_H_
