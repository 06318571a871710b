/*!
 * \file mesh/ffi.cc
 * \brief The algebra as global functions `distir.mesh.*` over plain data; see plain_data.h.
 *
 * A mesh is the two arguments (shape, device_ids). What is optional is None. Everything is checked
 * here, so that no input from Python reaches the algebra outside of its contract.
 */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include "abi/transfer_plan.h"
#include "mesh/common_view.h"
#include "mesh/layout.h"
#include "mesh/plain_data.h"
#include "mesh/segments.h"
#include "mesh/sharding.h"

namespace distir {
namespace mesh {

namespace ffi = tvm::ffi;

namespace {

Ints FromDims(const std::vector<int>& axis_to_dim) {
  Ints dims;
  for (int dim : axis_to_dim) dims.push_back(dim);
  return dims;
}

void RegisterMesh() {
  ffi::reflection::GlobalDef()
      .def("distir.mesh.CheckMesh", [](Ints shape, Ints ids) { ToMesh(shape, ids); })
      .def("distir.mesh.MeshToString",
           [](Ints shape, Ints ids) { return ffi::String(ToString(ToMesh(shape, ids))); })
      .def("distir.mesh.AxisName",
           [](int64_t axis) { return ffi::String(Mesh().AxisName(ToIndex(axis))); })
      .def("distir.mesh.MeshSize", [](Ints shape, Ints ids) { return ToMesh(shape, ids).size(); })
      .def("distir.mesh.Coordinates",
           [](Ints shape, Ints ids, int64_t position) {
             const Mesh mesh = ToMesh(shape, ids);
             if (position < 0 || position >= mesh.size()) {
               TVM_FFI_THROW(ValueError)
                   << "there is no position " << position << " in the mesh " << ToString(mesh);
             }
             return ToInts(mesh.Coordinates(position));
           })
      .def("distir.mesh.PositionOf",
           [](Ints shape, Ints ids, int64_t id) { return ToMesh(shape, ids).PositionOf(id); })
      .def("distir.mesh.FullAxis",
           [](Ints shape, Ints ids, int64_t axis) {
             const Mesh mesh = ToMesh(shape, ids);
             if (axis < 0 || axis >= mesh.ndim()) {
               TVM_FFI_THROW(ValueError)
                   << "there is no axis " << axis << " in the mesh " << ToString(mesh);
             }
             return FromAxes({FullAxis(mesh, static_cast<int>(axis))})[0];
           })
      .def("distir.mesh.Complement",
           [](Ints shape, Ints ids, AxisData used) {
             const Mesh mesh = ToMesh(shape, ids);
             const AxisList axes = ToAxes(used);
             // References may overlap each other here, so each is checked by itself.
             for (const AxisRef& ref : Canonical(axes)) ToAxesOn(mesh, FromAxes({ref}));
             return FromAxes(Complement(mesh, axes));
           })
      .def("distir.mesh.ShardIndices",
           [](Ints shape, Ints ids, AxisData axes) {
             const Mesh mesh = ToMesh(shape, ids);
             const AxisList list = ToAxesOn(mesh, axes);
             Ints indices;
             for (int64_t position = 0; position < mesh.size(); ++position) {
               indices.push_back(ShardIndex(mesh, list, mesh.Coordinates(position)));
             }
             return indices;
           })
      .def("distir.mesh.DeviceGroups",
           [](Ints shape, Ints ids, AxisData axes) {
             const Mesh mesh = ToMesh(shape, ids);
             ffi::Array<Ints> groups;
             for (const auto& group : DeviceGroups(mesh, ToAxesOn(mesh, axes))) {
               groups.push_back(ToInts(group));
             }
             return groups;
           })
      .def("distir.mesh.Relate",
           [](Ints view_shape, Ints view_ids, Ints root_shape,
              Ints root_ids) -> ffi::Optional<ffi::Array<AxisData>> {
             const auto related =
                 Relate(ToMesh(view_shape, view_ids), ToMesh(root_shape, root_ids));
             if (!related) return std::nullopt;
             ffi::Array<AxisData> data;
             for (const AxisList& axes : *related) data.push_back(FromAxes(axes));
             return data;
           });
}

void RegisterAxisLists() {
  ffi::reflection::GlobalDef()
      .def("distir.mesh.NumShards", [](AxisData axes) { return NumShards(ToAxes(axes)); })
      .def("distir.mesh.Overlaps",
           [](AxisData a, AxisData b) { return Overlaps(ToAxes(a), ToAxes(b)); })
      .def("distir.mesh.Canonical", [](AxisData axes) { return FromAxes(Canonical(ToAxes(axes))); })
      .def("distir.mesh.CommonPrefix",
           [](AxisData a, AxisData b) { return FromAxes(CommonPrefix(ToAxes(a), ToAxes(b))); })
      .def("distir.mesh.IsPrefix",
           [](AxisData prefix, AxisData axes) { return IsPrefix(ToAxes(prefix), ToAxes(axes)); })
      .def("distir.mesh.RemovePrefix",
           [](AxisData axes, AxisData prefix) {
             return FromAxes(RemovePrefix(ToAxes(axes), ToAxes(prefix)));
           })
      .def("distir.mesh.SplitAt",
           [](AxisData axes, int64_t size) -> ffi::Optional<ffi::Array<AxisData>> {
             const auto parts = SplitAt(ToAxes(axes), size);
             if (!parts) return std::nullopt;
             return ffi::Array<AxisData>{FromAxes(parts->first), FromAxes(parts->second)};
           })
      .def("distir.mesh.PrefixDisjointFrom",
           [](AxisData axes, AxisData taken) {
             return FromAxes(PrefixDisjointFrom(ToAxes(axes), ToAxes(taken)));
           })
      .def("distir.mesh.AxesToString",
           [](AxisData axes) { return ffi::String(ToString(ToAxes(axes), {})); })
      .def("distir.mesh.AxesToStringOn", [](Ints shape, Ints ids, AxisData axes) {
        return ffi::String(ToString(ToAxes(axes), ToMesh(shape, ids)));
      });
}

void RegisterShardings() {
  ffi::reflection::GlobalDef()
      .def("distir.mesh.CheckSharding",
           [](Ints shape, Ints ids, ShardingData sharding) {
             ToShardingOn(ToMesh(shape, ids), sharding);
           })
      .def("distir.mesh.Replicated",
           [](int64_t ndim) { return FromSharding(Sharding::Replicated(ToRank(ndim))); })
      .def("distir.mesh.IsReplicated",
           [](ShardingData sharding) { return ToSharding(sharding).IsReplicated(); })
      .def("distir.mesh.CanonicalSharding",
           [](ShardingData sharding) { return FromSharding(Canonical(ToSharding(sharding))); })
      .def("distir.mesh.SameLayout",
           [](Ints shape, Ints ids, ShardingData a, ShardingData b) {
             const Mesh mesh = ToMesh(shape, ids);
             return SameLayout(mesh, ToShardingOn(mesh, a), ToShardingOn(mesh, b));
           })
      .def("distir.mesh.LocalShape",
           [](Ints shape, ShardingData sharding) {
             return ToInts(LocalShape(ToVector(shape), ToSharding(sharding)));
           })
      .def("distir.mesh.ShardingToString",
           [](ShardingData sharding) { return ffi::String(ToString(ToSharding(sharding), {})); })
      .def("distir.mesh.ShardingToStringOn",
           [](Ints shape, Ints ids, ShardingData sharding) {
             return ffi::String(ToString(ToSharding(sharding), ToMesh(shape, ids)));
           })
      .def("distir.mesh.ToPlacement",
           [](Ints shape, Ints ids, ShardingData sharding) {
             const Mesh root = ToMesh(shape, ids);
             const MeshPlacement placement = ToPlacement(root, ToShardingOn(root, sharding));
             return ffi::Array<Ints>{ToInts(placement.mesh.shape),
                                     ToInts(placement.mesh.device_ids),
                                     FromDims(placement.axis_to_dim)};
           })
      .def("distir.mesh.ToPlacementOn",
           [](Ints view_shape, Ints view_ids, Ints shape, Ints ids,
              ShardingData sharding) -> ffi::Optional<Ints> {
             const Mesh root = ToMesh(shape, ids);
             const auto axis_to_dim =
                 ToPlacementOn(ToMesh(view_shape, view_ids), root, ToShardingOn(root, sharding));
             if (!axis_to_dim) return std::nullopt;
             return FromDims(*axis_to_dim);
           })
      .def("distir.mesh.CommonView",
           [](Ints shape, Ints ids, ffi::Array<AxisData> lists) -> ffi::Optional<ffi::Array<Ints>> {
             const Mesh root = ToMesh(shape, ids);
             std::vector<AxisList> axes;
             for (const AxisData& list : lists) axes.push_back(ToAxesOn(root, list));
             const auto view = CommonView(root, axes);
             if (!view) return std::nullopt;
             return ffi::Array<Ints>{ToInts(view->shape), ToInts(view->device_ids)};
           })
      .def("distir.mesh.FromPlacement", [](Ints view_shape, Ints view_ids, Ints axis_to_dim,
                                           int64_t ndim, Ints shape, Ints ids) {
        std::vector<int> dims;
        for (int64_t dim : axis_to_dim) dims.push_back(ToIndex(dim));
        return FromSharding(
            FromPlacement(ToMesh(view_shape, view_ids), dims, ToRank(ndim), ToMesh(shape, ids)));
      });
}

abi::Closeness ToCloseness(const ffi::Array<Ints>& hosts) {
  abi::Closeness closeness;
  for (const Ints& host : hosts) {
    for (int64_t device : host) closeness.device_ids.push_back(device);
  }
  if (!hosts.empty()) {
    const int64_t count = static_cast<int64_t>(hosts.size());
    closeness.levels.push_back(
        {{static_cast<int64_t>(closeness.device_ids.size()) / count, count}});
  }
  return closeness;
}

void RegisterPlans() {
  ffi::reflection::GlobalDef()
      // `hosts`: lists of as many device ids each; devices of one are nearer to each other than to
      // all others.
      .def("distir.mesh.TransferPlan",
           [](Ints source_shape, Ints source_ids, ShardingData source, Ints target_shape,
              Ints target_ids, ShardingData target, Ints extents, ffi::Array<Ints> hosts) {
             const Mesh from = ToMesh(source_shape, source_ids);
             const Mesh to = ToMesh(target_shape, target_ids);
             abi::TransferPlan plan;
             plan.shape = ToVector(extents);
             plan.source = LayoutOf(from, ToShardingOn(from, source));
             plan.target = LayoutOf(to, ToShardingOn(to, target));
             plan.closeness = ToCloseness(hosts);
             return abi::ToJson(plan);
           })
      // `moved`: dimension, its extent before and after; segments as in abi/segment_plan.h.
      .def("distir.mesh.SegmentPlan",
           [](Ints shape, Ints ids, ShardingData source, ShardingData target, Ints moved,
              ffi::Array<Ints> segments, ffi::Array<Ints> hosts) {
             const Mesh mesh = ToMesh(shape, ids);
             abi::SegmentPlan plan;
             plan.dim = moved[0];
             plan.source_size = moved[1];
             plan.target_size = moved[2];
             plan.fill = "0";
             for (const Ints& row : segments)
               plan.segments.push_back({row[0], row[1], row[2], row[3]});
             CheckSegments({ToIndex(moved[0]), moved[1], moved[2]}, plan.segments);
             plan.source = LayoutOf(mesh, ToShardingOn(mesh, source));
             plan.target = LayoutOf(mesh, ToShardingOn(mesh, target));
             plan.closeness = ToCloseness(hosts);
             return abi::ToJson(plan);
           });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  RegisterMesh();
  RegisterAxisLists();
  RegisterShardings();
  RegisterPlans();
}

}  // namespace mesh
}  // namespace distir
