// Reads a cluster and answers which link joins two devices, a group or an axis.
#include "cost/cluster.h"

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "mesh/layout.h"
#include "mesh/plain_data.h"

namespace distir::cost {

namespace ffi = tvm::ffi;

namespace {

// 18 NVLink 4 links of 25 GB/s per direction (NVIDIA H100 data sheet); latencies per step of a ring
// and per collective with the Simple protocol (NCCL 2, src/graph/tuning.cc).
// The gap is an assumption: a device starts some messages per microsecond.
constexpr Link kNVLink{3.4e-6, 0.5e-6, 450e9};
constexpr double kLaunch = 8.4e-6;

bool IsFaster(const Link& a, const Link& b) {
  return std::tie(b.bandwidth, a.latency, a.gap) < std::tie(a.bandwidth, b.latency, b.gap);
}

}  // namespace

Cluster::Cluster() : Cluster(kNVLink, kLaunch) {}

Cluster::Cluster(Link link, double launch) : launch_(launch), links_{link} { Check(); }

Cluster::Cluster(const mesh::Mesh& mesh, std::vector<Link> links, double launch)
    : launch_(launch), mesh_(mesh) {
  if (static_cast<int>(links.size()) != mesh.ndim() || links.empty()) {
    TVM_FFI_THROW(ValueError) << "a cluster on a mesh of " << mesh.ndim()
                              << " axes needs one link for each, got " << links.size();
  }
  std::vector<int> order(links.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return IsFaster(links[a], links[b]); });
  link_of_axis_.resize(links.size());
  for (int axis : order) {
    if (links_.empty() || IsFaster(links_.back(), links[axis])) links_.push_back(links[axis]);
    link_of_axis_[axis] = static_cast<int>(links_.size()) - 1;
  }
  for (int64_t position = 0; position < mesh.size(); ++position) {
    coordinates_.emplace(mesh.device_ids[position], mesh.Coordinates(position));
  }
  Check();
}

void Cluster::Check() const {
  if (!(launch_ >= 0)) {
    TVM_FFI_THROW(ValueError) << "the launch time of a cluster is at least 0, got " << launch_
                              << " s";
  }
  for (const Link& link : links_) {
    if (link.latency >= 0 && link.gap >= 0 && link.bandwidth > 0) continue;
    TVM_FFI_THROW(ValueError)
        << "a link needs a latency and a gap of at least 0 and a positive bandwidth, got "
        << link.latency << " s, " << link.gap << " s and " << link.bandwidth << " B/s";
  }
}

int Cluster::Between(int64_t device, int64_t other) const {
  if (IsUniform() || device == other) return 0;
  auto a = coordinates_.find(device), b = coordinates_.find(other);
  if (a == coordinates_.end() || b == coordinates_.end())
    return static_cast<int>(links_.size()) - 1;
  int slowest = 0;
  for (size_t axis = 0; axis < link_of_axis_.size(); ++axis) {
    if (a->second[axis] != b->second[axis]) slowest = std::max(slowest, link_of_axis_[axis]);
  }
  return slowest;
}

std::vector<int64_t> Cluster::PatternOf(const std::vector<int64_t>& devices) const {
  std::vector<int64_t> pattern(link_of_axis_.begin(), link_of_axis_.end());
  if (IsUniform()) return pattern;
  for (size_t axis = 0; axis < link_of_axis_.size(); ++axis) {
    // Places along an axis, in the order in which they are met.
    std::unordered_map<int64_t, int64_t> number_of;
    for (int64_t device : devices) {
      auto found = coordinates_.find(device);
      if (found == coordinates_.end()) {
        pattern.push_back(-1);
        continue;
      }
      const auto next = static_cast<int64_t>(number_of.size());
      pattern.push_back(number_of.emplace(found->second[axis], next).first->second);
    }
  }
  return pattern;
}

int Cluster::Slowest(const std::vector<int64_t>& group) const {
  // Of two devices that differ along an axis, one differs from the first there, too.
  int slowest = 0;
  for (int64_t device : group) slowest = std::max(slowest, Between(group[0], device));
  return slowest;
}

int Cluster::Along(const mesh::Mesh& mesh, const mesh::AxisList& axes) const {
  if (IsUniform()) return 0;
  int slowest = 0;
  for (const std::vector<int64_t>& group : mesh::DeviceGroups(mesh, axes)) {
    slowest = std::max(slowest, Slowest(group));
  }
  return slowest;
}

abi::Closeness Cluster::ClosenessAmong(const std::vector<int64_t>& devices) const {
  abi::Closeness closeness{mesh_.device_ids, {}};
  // Behind the last link's level there is one ball of all devices.
  for (int link = 0; link + 1 < static_cast<int>(links_.size()); ++link) {
    mesh::AxisList between;  // axes along which balls differ
    for (int axis = 0; axis < mesh_.ndim(); ++axis) {
      if (link_of_axis_[axis] > link) between.push_back(mesh::FullAxis(mesh_, axis));
    }
    closeness.levels.push_back(mesh::DigitsOf(mesh_, between));
  }
  const abi::Neighbours neighbours(closeness);
  const std::unordered_set<int64_t> different(devices.begin(), devices.end());
  std::vector<abi::Digits> telling;
  for (size_t level = 0; level < closeness.levels.size(); ++level) {
    std::unordered_set<int64_t> balls;
    for (int64_t device : different) balls.insert(neighbours.BallOf(device, level));
    if (balls.size() > 1 && balls.size() < different.size())
      telling.push_back(closeness.levels[level]);
  }
  if (telling.empty()) return {};
  return {std::move(closeness.device_ids), std::move(telling)};
}

namespace {

ffi::Array<ffi::Any> ListIn(const ffi::Map<ffi::String, ffi::Any>& data, const char* key) {
  auto found = data.find(key);
  if (found != data.end()) {
    if (auto list = (*found).second.as<ffi::Array<ffi::Any>>(); list.has_value()) return *list;
  }
  TVM_FFI_THROW(ValueError) << "a cluster needs `" << key << "`, a list";
}

std::vector<double> NumbersIn(const ffi::Map<ffi::String, ffi::Any>& data, const char* key) {
  std::vector<double> numbers;
  for (const ffi::Any& item : ListIn(data, key)) {
    auto number = item.as<double>();
    if (!number.has_value()) {
      TVM_FFI_THROW(ValueError) << "`" << key << "` of a cluster holds something else than numbers";
    }
    numbers.push_back(*number);
  }
  return numbers;
}

mesh::Ints IntegersIn(const ffi::Map<ffi::String, ffi::Any>& data, const char* key) {
  mesh::Ints integers;
  for (const ffi::Any& item : ListIn(data, key)) {
    auto integer = item.as<int64_t>();
    if (!integer.has_value()) {
      TVM_FFI_THROW(ValueError) << "`" << key
                                << "` of a cluster holds something else than integers";
    }
    integers.push_back(*integer);
  }
  return integers;
}

}  // namespace

Cluster ToCluster(const ffi::Any& any) {
  if (any == nullptr) return Cluster();
  auto map = any.as<ffi::Map<ffi::String, ffi::Any>>();
  if (!map.has_value()) TVM_FFI_THROW(ValueError) << "a cluster is a map, got " << any.GetTypeKey();
  std::vector<double> latency = NumbersIn(*map, "latency");
  std::vector<double> bandwidth = NumbersIn(*map, "bandwidth");
  std::vector<double> gap = NumbersIn(*map, "gap");
  if (latency.size() != bandwidth.size() || latency.size() != gap.size() || latency.empty()) {
    TVM_FFI_THROW(ValueError) << "a cluster needs as many latencies as gaps and bandwidths, got "
                              << latency.size() << ", " << gap.size() << " and "
                              << bandwidth.size();
  }
  std::vector<Link> links;
  for (size_t i = 0; i < latency.size(); ++i) links.push_back({latency[i], gap[i], bandwidth[i]});
  auto launch_item = map->find("launch");
  std::optional<double> launch;
  if (launch_item != map->end()) launch = (*launch_item).second.as<double>();
  if (!launch.has_value()) TVM_FFI_THROW(ValueError) << "a cluster needs `launch`, a number";
  if (map->find("shape") != map->end()) {
    return Cluster(mesh::ToMesh(IntegersIn(*map, "shape"), IntegersIn(*map, "device_ids")), links,
                   *launch);
  }
  if (links.size() != 1) {
    TVM_FFI_THROW(ValueError) << "a cluster of " << links.size() << " links needs a mesh";
  }
  return Cluster(links[0], *launch);
}

}  // namespace distir::cost
