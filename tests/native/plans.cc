// Test hooks: makes transfer and segment plans of shardings, and lists the pieces of a device.
#include <set>

#include "abi/segment_plan.h"
#include "abi/transfer_plan.h"
#include "arguments.h"
#include "mesh/layout.h"
#include "mesh/segments.h"

namespace distir::test {

namespace {

using mesh::Ints;

/*! \brief `hosts`: lists of as many device ids each; devices of one are nearer to each other than
 * to all others. */
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

std::set<int64_t> DevicesOf(const abi::Layout& source, const abi::Layout& target) {
  std::set<int64_t> devices(source.device_ids.begin(), source.device_ids.end());
  devices.insert(target.device_ids.begin(), target.device_ids.end());
  return devices;
}

// Source mesh and sharding, target mesh and sharding, extents, hosts.
Any TransferPlan(Arguments& in) {
  abi::TransferPlan plan;
  const mesh::Mesh from = in.Mesh();
  plan.source = mesh::LayoutOf(from, in.ShardingOn(from));
  const mesh::Mesh to = in.Mesh();
  plan.target = mesh::LayoutOf(to, in.ShardingOn(to));
  plan.shape = mesh::ToVector(in.Integers());
  plan.closeness = ToCloseness(in.Next<ffi::Array<Ints>>());
  return ffi::String(abi::ToJson(plan));
}

// Mesh, two shardings; the dimension, its extent before and after; segments; hosts.
Any SegmentPlan(Arguments& in) {
  abi::SegmentPlan plan;
  const mesh::Mesh mesh = in.Mesh();
  plan.source = mesh::LayoutOf(mesh, in.ShardingOn(mesh));
  plan.target = mesh::LayoutOf(mesh, in.ShardingOn(mesh));
  const Ints moved = in.Integers();
  plan.dim = moved[0];
  plan.source_size = moved[1];
  plan.target_size = moved[2];
  plan.fill = "0";
  for (const Ints& row : in.Next<ffi::Array<Ints>>())
    plan.segments.push_back({row[0], row[1], row[2], row[3]});
  mesh::CheckSegments({mesh::ToIndex(moved[0]), moved[1], moved[2]}, plan.segments);
  plan.closeness = ToCloseness(in.Next<ffi::Array<Ints>>());
  return ffi::String(abi::ToJson(plan));
}

// The grid of a device; what it sends and what it receives, each as peer, begin, end.
ffi::Array<Any> PartAsData(const abi::TransferPart& part) {
  const auto row = [](const abi::TransferPiece& piece) {
    return ffi::Array<Any>{piece.peer, ToInts(piece.box.begin), ToInts(piece.box.end)};
  };
  return ffi::Array<Any>{ToInts(part.grid), ArrayOf(part.sends, row), ArrayOf(part.receives, row)};
}

Any TransferPart(Arguments& in) {
  const abi::TransferPlan plan = abi::ReadTransferPlan(in.Next<ffi::String>());
  return PartAsData(abi::TransferPlanner(plan).PartOf(in.Next<int64_t>()));
}

// Per device its id, and the members of its part.
Any TransferParts(Arguments& in) {
  const abi::TransferPlan plan = abi::ReadTransferPlan(in.Next<ffi::String>());
  const abi::TransferPlanner planner(plan);
  return ArrayOf(DevicesOf(plan.source, plan.target), [&planner](int64_t device) {
    const ffi::Array<Any> part = PartAsData(planner.PartOf(device));
    return ffi::Array<Any>{device, part[0], part[1], part[2]};
  });
}

// Per device its id; what it sends and what it receives, each as peer, source, target, step, count.
Any SegmentParts(Arguments& in) {
  const abi::SegmentPlan plan = abi::ReadSegmentPlan(in.Next<ffi::String>());
  const abi::SegmentPlanner planner(plan);
  const auto row = [](const abi::SegmentPiece& piece) {
    const abi::Segment& moved = piece.segment;
    return Ints{piece.peer, moved.source, moved.target, moved.step, moved.count};
  };
  return ArrayOf(DevicesOf(plan.source, plan.target), [&](int64_t device) {
    const abi::SegmentPart part = planner.PartOf(device);
    return ffi::Array<Any>{device, ArrayOf(part.sends, row), ArrayOf(part.receives, row)};
  });
}

const bool kPlans = Register({
    {"TransferPlan", TransferPlan},
    {"SegmentPlan", SegmentPlan},
    {"TransferPart", TransferPart},
    {"TransferParts", TransferParts},
    {"SegmentParts", SegmentParts},
});

}  // namespace

}  // namespace distir::test
