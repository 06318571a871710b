/*!
 * \file dialect/mesh_table.h
 * \brief Table of a module's device meshes: maps TVM's (DeviceMesh, Placement) to shardings on root
 * meshes and back.
 *
 * Meshes over the same devices that are reshapes, transposes or refinements of each other are
 * *views* of one root, the first of them in the module. Passes compute on roots; types name a view
 * only where the root cannot express a sharding. DeviceMesh objects are unique per table, because
 * TVMScript prints a mesh by identity with an entry of the module's global infos.
 *
 * Names of axes are a module attribute, one list of names per entry of the global infos, empty for
 * a mesh without: {"mesh": [["dp", "tp"], []]}. TVM's and our passes keep it, and it prints and
 * parses. Texts say shardings in the names of the root, unless a view has names of its own.
 *
 * Worked example: global infos mesh = [(2, 4) ids 0..7]. A tensor sharded [y, x] on dimension 0 has
 * no placement on (2, 4), whose axes nest as x, y; the table adds the view (4, 2) ids 0 4 1 5 2 6 3
 * 7 as mesh[1], placement "S[0], S[0]".
 */
#ifndef DISTIR_DIALECT_MESH_TABLE_H_
#define DISTIR_DIALECT_MESH_TABLE_H_

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dialect/placement.h"
#include "ir/node.h"
#include "mesh/region.h"
#include "mesh/sharding.h"
#include "support/small_vector.h"

namespace distir::dialect {

namespace ffi = tvm::ffi;

/*! \brief The module attribute with the names of mesh axes; see the file comment. */
constexpr const char* kMeshAxesAttr = "distir.mesh_axes";
using AxisNames = ffi::Array<ffi::String>;

mesh::Mesh ToMesh(const ir::DeviceMesh& device_mesh);

/*! \brief True if a function takes, makes or returns DTensors. */
bool IsDistributed(const ir::Function& function);
/*! \brief Marks a function of which LegalizeRedistribute has written out the reductions that rules
 * imply; without it, a second run would add them again. */
constexpr const char* kExplicitReductions = "distir.explicit_reductions";
bool HasExplicitReductions(const ir::Function& function);
/*! \brief True if all distributed functions of a module are marked so. */
bool HasExplicitReductions(const ir::IRModule& mod);

/*! \brief A manual region: its mesh (mesh/region.h) is a root of its own, on which its values lie.
 */
struct ManualRegion {
  int outer;              // root of the mesh that it is entered from
  int inner;              // root of its own mesh; the same one if its axes have the size 1
  mesh::AxisList manual;  // on the outer root, in its order
  std::vector<mesh::AxisPair> to_inner, to_outer;  // the axes that stay automatic

  /*! \brief The longest prefix of axes of the outer root that stay automatic, on the inner root. */
  mesh::AxisList Inside(const mesh::AxisList& axes) const {
    return mesh::MapPrefix(axes, to_inner);
  }
  mesh::AxisList Outside(const mesh::AxisList& axes) const {
    return mesh::MapPrefix(axes, to_outer);
  }
};

class MeshTable {
 public:
  /*! \brief Makes a table for types outside of a module, whose axes have no names. */
  MeshTable() = default;
  /*! \throws ValueError if the names of a mesh do not fit it. */
  explicit MeshTable(const ir::IRModule& mod);

  /*! \brief The root of a mesh; entered on first sight. */
  int RootOf(const ir::DeviceMesh& device_mesh);
  int RootOf(const ir::DTensorType& type) { return RootOf(type.device_mesh()); }
  const mesh::Mesh& Root(int root) const { return roots_[root]; }
  /*! \brief The root as the module's object. */
  ir::DeviceMesh RootMesh(int root) const { return views_[root_views_[root]].object; }
  /*! \brief Axes of a mesh on its root; valid until another mesh is entered. */
  const std::vector<mesh::AxisList>& AxesOf(const ir::DeviceMesh& device_mesh) {
    return views_[ViewOf(device_mesh)].axes;
  }
  int num_roots() const { return static_cast<int>(roots_.size()); }

  /*! \brief A sharding on a root, as users write it: "('dp', None)". */
  std::string Text(int root, const mesh::Sharding& sharding) const {
    return mesh::ToString(sharding, roots_[root]);
  }
  /*! \brief The sharding of a type, on the names of its own mesh or else of the root. */
  std::string Text(const ir::DTensorType& type);
  /*! \brief The sharding, and its mesh if the module has several. */
  std::string TextAmongMeshes(const ir::DTensorType& type);
  std::string TextAmongMeshes(int root, const mesh::Sharding& sharding) const;
  /*! \brief A mesh with the names that Text uses for it: "(dp=2, tp=4) of devices 0..7". */
  std::string MeshText(const ir::DeviceMesh& device_mesh);
  /*! \brief The mesh whose axes Text names for what lies on a mesh: itself, or its root if it has
   * no names; valid until another mesh is entered. */
  const mesh::Mesh& NamedMesh(const ir::DeviceMesh& device_mesh) {
    return NamedMesh(ViewOf(device_mesh));
  }
  std::string AxisName(const ir::DeviceMesh& device_mesh, int axis);
  /*! \brief Names the axes of a mesh that has no names yet. */
  void Name(const ir::DeviceMesh& device_mesh, const AxisNames& names);

  /*!
   * \brief The sharding, on its root (RootOf), that a type states. Read once per placement object;
   * the reference is valid as long as the table.
   * \throws ValueError naming the type when placement and rank do not agree.
   */
  const mesh::Sharding& ShardingOf(const ir::DTensorType& type);
  /*! \brief True if a static dimension does not divide into its shards, in a tensor of a type. */
  bool IsUneven(const ir::Type& type);
  const mesh::Sharding& ShardingOf(const ir::DeviceMesh& device_mesh,
                                   const ir::Placement& placement, int ndim);

  /*! \brief A mesh and placement that state a sharding: the root's own where possible. */
  std::pair<ir::DeviceMesh, ir::Placement> PlacementOf(int root, const mesh::Sharding& sharding);
  /*! \brief The placement that states a sharding on this very view; null where the view cannot. */
  ir::Placement PlacementOn(const ir::DeviceMesh& view, int root, const mesh::Sharding& sharding);
  ir::DTensorType TypeOf(const ir::TensorType& tensor_ty, int root, const mesh::Sharding& sharding);
  /*! \brief The unique DeviceMesh equal to `mesh`. */
  ir::DeviceMesh Intern(const mesh::Mesh& mesh);

  /*! \brief The region over some axes of a mesh, which has its own mesh in the table from now on.
   * The reference is valid as long as the table.
   * \throws ValueError where the module has that mesh for something else. */
  const ManualRegion& EnterRegion(const ir::DeviceMesh& device_mesh,
                                  const std::vector<int>& manual_axes);
  /*! \brief The region, entered from no other one, whose values lie on a root; null for roots of
   * ordinary meshes. */
  const ManualRegion* RegionOf(int root) const;
  /*! \brief The region that leads from one root to another, or null. */
  const ManualRegion* RegionBetween(int outer, int inner) const;
  /*! \brief The root of the devices that have values of a root: of a region, all of its devices. */
  int DevicesOf(int root) const;
  /*! \brief A mesh of a root that has these as axes of its own, and which of its axes they are. */
  std::pair<ir::DeviceMesh, std::vector<int>> WholeAxes(int root, const mesh::AxisList& axes);

  /*! \brief The module's global infos with every mesh of the table among them. */
  ir::GlobalInfoMap GlobalInfos() const;
  /*! \brief Attributes of a module with these global infos and the names that were added. */
  ir::Node ModuleAttrs(const ir::Node& attrs) const;

 private:
  struct View {
    ir::DeviceMesh object;
    mesh::Mesh mesh;
    int root;
    std::vector<mesh::AxisList> axes;  // on the root
  };
  /*! \brief Key of a placement object, for tensors of one rank, on one view. */
  struct PlacementKey {
    const ffi::Object* placement;
    int view;
    int ndim;
    bool operator==(const PlacementKey& other) const {
      return placement == other.placement && view == other.view && ndim == other.ndim;
    }
  };
  struct HashPlacementKey {
    size_t operator()(const PlacementKey& key) const {
      return std::hash<const void*>()(key.placement) ^
             static_cast<size_t>(key.view * 64 + key.ndim);
    }
  };
  struct ReadPlacement {
    ir::Placement placement;  // keeps the key alive
    mesh::Sharding sharding;
  };
  // Up to four dimensions sharded over one axis each do without an allocation.
  using ShardingKey = SmallVector<int64_t, 20>;

  static ShardingKey Key(int64_t on, const mesh::Sharding& sharding);
  /*! \brief Numbers that are equal for equal meshes, and for meshes over the same devices. */
  struct Hashes {
    explicit Hashes(const mesh::Mesh& mesh);
    uint64_t mesh, devices;
  };
  int Enter(const ir::DeviceMesh& device_mesh);
  int FindView(const mesh::Mesh& mesh, const Hashes& hashes) const;
  int ViewOf(const ir::DeviceMesh& device_mesh);
  void NameView(int view, const std::vector<std::string>& names);
  void NameRegionMesh(const ir::DeviceMesh& outer, const mesh::AxisList& axes,
                      const ir::DeviceMesh& inner);
  const mesh::Mesh& NamedMesh(int view) const;

  ir::GlobalInfoMap global_infos_;
  size_t num_given_ = 0;  // views below this index stand in global_infos_
  bool named_ = false;    // names were added to those of the module
  std::vector<View> views_;
  std::vector<mesh::Mesh> roots_;
  std::vector<int> root_views_;  // the view that is the root itself
  std::unordered_multimap<uint64_t, int> views_by_mesh_, roots_by_devices_;  // by hash
  std::vector<ir::DeviceMesh> entered_;  // keeps the keys of view_of_object_ alive
  std::unordered_map<const ffi::Object*, int> view_of_object_;
  std::unordered_map<PlacementKey, ReadPlacement, HashPlacementKey> read_;
  std::map<ShardingKey, std::pair<ir::DeviceMesh, ir::Placement>> placements_;
  std::map<ShardingKey, ir::Placement> placements_on_view_;
  std::map<std::pair<int, std::vector<mesh::AxisRef>>, ManualRegion> entered_regions_;
  std::map<int, ManualRegion> regions_;  // by their own root
};

}  // namespace distir::dialect
#endif  // DISTIR_DIALECT_MESH_TABLE_H_
