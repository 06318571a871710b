// Test hooks: meshes, axis lists and shardings of src/mesh over plain data.
#include <optional>

#include "arguments.h"
#include "mesh/common_view.h"
#include "mesh/sharding.h"

namespace distir::test {

namespace {

using mesh::AxisList;
using mesh::AxisRef;
using mesh::Ints;

Ints FromDims(const std::vector<int>& axis_to_dim) {
  Ints dims;
  for (int dim : axis_to_dim) dims.push_back(dim);
  return dims;
}

const bool kMeshes = Register({
    {"CheckMesh",
     [](Arguments& in) -> Any {
       in.Mesh();
       return nullptr;
     }},
    {"MeshToString", [](Arguments& in) -> Any { return ffi::String(mesh::ToString(in.Mesh())); }},
    {"MeshSize", [](Arguments& in) -> Any { return in.Mesh().size(); }},
    {"Coordinates",
     [](Arguments& in) -> Any {
       const mesh::Mesh mesh = in.Mesh();
       return ToInts(mesh.Coordinates(in.Next<int64_t>()));
     }},
    {"PositionOf",
     [](Arguments& in) -> Any {
       const mesh::Mesh mesh = in.Mesh();
       return mesh.PositionOf(in.Next<int64_t>());
     }},
    {"FullAxis",
     [](Arguments& in) -> Any {
       const mesh::Mesh mesh = in.Mesh();
       return FromAxes({mesh::FullAxis(mesh, in.Next<int>())})[0];
     }},
    {"Complement",
     [](Arguments& in) -> Any {
       const mesh::Mesh mesh = in.Mesh();
       return FromAxes(mesh::Complement(mesh, in.Axes()));
     }},
    {"ShardIndices",
     [](Arguments& in) -> Any {
       const mesh::Mesh mesh = in.Mesh();
       const AxisList axes = in.AxesOn(mesh);
       Ints indices;
       for (int64_t position = 0; position < mesh.size(); ++position)
         indices.push_back(mesh::ShardIndex(mesh, axes, mesh.Coordinates(position)));
       return indices;
     }},
    {"DeviceGroups",
     [](Arguments& in) -> Any {
       const mesh::Mesh mesh = in.Mesh();
       return ArrayOf(mesh::DeviceGroups(mesh, in.AxesOn(mesh)), ToInts);
     }},
    {"Relate",
     [](Arguments& in) -> Any {
       const mesh::Mesh view = in.Mesh(), root = in.Mesh();
       const auto related = mesh::Relate(view, root);
       if (!related) return nullptr;
       return ArrayOf(*related, FromAxes);
     }},
});

const bool kAxisLists = Register({
    {"NumShards", [](Arguments& in) -> Any { return mesh::NumShards(in.Axes()); }},
    {"Overlaps",
     [](Arguments& in) -> Any {
       const AxisList a = in.Axes(), b = in.Axes();
       return mesh::Overlaps(a, b);
     }},
    {"Canonical", [](Arguments& in) -> Any { return FromAxes(mesh::Canonical(in.Axes())); }},
    {"CommonPrefix",
     [](Arguments& in) -> Any {
       const AxisList a = in.Axes(), b = in.Axes();
       return FromAxes(mesh::CommonPrefix(a, b));
     }},
    {"IsPrefix",
     [](Arguments& in) -> Any {
       const AxisList prefix = in.Axes(), axes = in.Axes();
       return mesh::IsPrefix(prefix, axes);
     }},
    {"RemovePrefix",
     [](Arguments& in) -> Any {
       const AxisList axes = in.Axes(), prefix = in.Axes();
       return FromAxes(mesh::RemovePrefix(axes, prefix));
     }},
    {"PrefixDisjointFrom",
     [](Arguments& in) -> Any {
       const AxisList axes = in.Axes(), taken = in.Axes();
       return FromAxes(mesh::PrefixDisjointFrom(axes, taken));
     }},
    {"AxesToString",
     [](Arguments& in) -> Any { return ffi::String(mesh::ToString(in.Axes(), {})); }},
    {"AxesToStringOn",
     [](Arguments& in) -> Any {
       const mesh::Mesh mesh = in.Mesh();
       return ffi::String(mesh::ToString(in.Axes(), mesh));
     }},
});

const bool kShardings = Register({
    {"CheckSharding",
     [](Arguments& in) -> Any {
       in.ShardingOn(in.Mesh());
       return nullptr;
     }},
    {"Replicated",
     [](Arguments& in) -> Any { return FromSharding(mesh::Sharding::Replicated(in.Next<int>())); }},
    {"IsReplicated", [](Arguments& in) -> Any { return in.Sharding().IsReplicated(); }},
    {"CanonicalSharding",
     [](Arguments& in) -> Any { return FromSharding(mesh::Canonical(in.Sharding())); }},
    {"SameLayout",
     [](Arguments& in) -> Any {
       const mesh::Mesh mesh = in.Mesh();
       const mesh::Sharding a = in.ShardingOn(mesh), b = in.ShardingOn(mesh);
       return mesh::SameLayout(mesh, a, b);
     }},
    {"LocalShape",
     [](Arguments& in) -> Any {
       const Ints shape = in.Integers();
       return ToInts(mesh::LocalShape(mesh::ToVector(shape), in.Sharding()));
     }},
    {"ShardingToString",
     [](Arguments& in) -> Any { return ffi::String(mesh::ToString(in.Sharding(), {})); }},
    {"ShardingToStringOn",
     [](Arguments& in) -> Any {
       const mesh::Mesh mesh = in.Mesh();
       return ffi::String(mesh::ToString(in.Sharding(), mesh));
     }},
    {"ToPlacement",
     [](Arguments& in) -> Any {
       const mesh::Mesh root = in.Mesh();
       const mesh::MeshPlacement placement = mesh::ToPlacement(root, in.ShardingOn(root));
       return ffi::Array<Any>{ToInts(placement.mesh.shape), ToInts(placement.mesh.device_ids),
                              FromDims(placement.axis_to_dim)};
     }},
    {"ToPlacementOn",
     [](Arguments& in) -> Any {
       const mesh::Mesh view = in.Mesh(), root = in.Mesh();
       const auto axis_to_dim = mesh::ToPlacementOn(view, root, in.ShardingOn(root));
       if (!axis_to_dim) return nullptr;
       return FromDims(*axis_to_dim);
     }},
    {"CommonView",
     [](Arguments& in) -> Any {
       const mesh::Mesh root = in.Mesh();
       std::vector<AxisList> axes;
       for (const AxisData& list : in.Next<ffi::Array<AxisData>>())
         axes.push_back(ToAxesOn(root, list));
       const auto view = mesh::CommonView(root, axes);
       if (!view) return nullptr;
       return ffi::Array<Any>{ToInts(view->shape), ToInts(view->device_ids)};
     }},
    {"FromPlacement",
     [](Arguments& in) -> Any {
       const mesh::Mesh view = in.Mesh();
       std::vector<int> dims;
       for (int64_t dim : in.Integers()) dims.push_back(mesh::ToIndex(dim));
       const int ndim = in.Next<int>();
       return FromSharding(mesh::FromPlacement(view, dims, ndim, in.Mesh()));
     }},
});

}  // namespace

}  // namespace distir::test
