// Computes how long redistributions take, each planned once and cached.
#include "autosharding/moves.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace distir::autosharding {

namespace {

void Append(const mesh::AxisList& axes, Words* key) {
  key->push_back(static_cast<int64_t>(axes.size()));
  for (const mesh::AxisRef& axis : axes) {
    key->push_back(axis.axis);
    key->push_back(axis.pre_size);
    key->push_back(axis.size);
  }
}

// Of more axes that are alike, not all exchanges are looked at.
constexpr int kMostExchanged = 4;

void Exchange(const std::vector<int>& places, mesh::AxisList* axes) {
  for (mesh::AxisRef& axis : *axes) axis.axis = places[axis.axis];
}

}  // namespace

Moves::Moves(planning::Planner* planner, mesh::Mesh mesh, const DeviceLimits& limits)
    : planner_(*planner), mesh_(std::move(mesh)), limits_(limits) {
  if (!planner_.cluster().IsUniform() || mesh_.ndim() > kMostExchanged) return;
  std::vector<int> places(mesh_.ndim());
  std::iota(places.begin(), places.end(), 0);
  while (std::next_permutation(places.begin(), places.end())) {
    bool is_alike = true;
    for (int axis = 0; axis < mesh_.ndim(); ++axis)
      is_alike = is_alike && mesh_.shape[axis] == mesh_.shape[places[axis]];
    if (is_alike) exchanges_.push_back(places);
  }
  exchanged_.resize(exchanges_.size());
}

int Moves::Exchanged(int sharding, size_t exchange) {
  std::vector<int>& known = exchanged_[exchange];
  if (known.size() <= static_cast<size_t>(sharding)) known.resize(sharding + 1, -1);
  if (known[sharding] < 0) {
    mesh::Sharding other = shardings_[sharding];
    for (mesh::AxisList& dim : other.dims) Exchange(exchanges_[exchange], &dim);
    Exchange(exchanges_[exchange], &other.partial);
    // Partial axes are a set, in the order of the mesh.
    std::sort(other.partial.begin(), other.partial.end(),
              [](const mesh::AxisRef& a, const mesh::AxisRef& b) { return a.axis < b.axis; });
    known[sharding] = Number(other);
  }
  return known[sharding];
}

std::pair<int, int> Moves::Representative(int from, int to) {
  std::pair<int, int> least = {from, to};
  for (size_t each = 0; each < exchanges_.size(); ++each) {
    const int source = Exchanged(from, each);
    least = std::min(least, {source, Exchanged(to, each)});
  }
  return least;
}

int Moves::Number(const mesh::Sharding& sharding) {
  Words key = {static_cast<int64_t>(sharding.dims.size()),
               static_cast<int64_t>(sharding.reduction)};
  for (const mesh::AxisList& dim : sharding.dims) Append(dim, &key);
  Append(sharding.partial, &key);
  auto [found, is_new] = numbers_.emplace(std::move(key), static_cast<int>(shardings_.size()));
  if (is_new) shardings_.push_back(sharding);
  return found->second;
}

double Moves::Find(Known* known, int from, int to) {
  if (from == to) return 0;
  std::tie(from, to) = Representative(from, to);
  auto [found, is_new] = known->seconds.emplace((static_cast<int64_t>(from) << 32) + to, 0);
  if (is_new) {
    const mesh::Sharding& source = shardings_[from];
    const mesh::Sharding& target = shardings_[to];
    const planning::Plan& plan =
        planner_.Find(mesh_, source, target, planning::PaddedFor(known->size, source, target));
    found->second = plan.seconds;
    for (const planning::PlanStep& step : plan.steps) {
      if (step.kind != mesh::CollectiveKind::kSlice) continue;
      const double bytes = LocalBytes(known->sizes, known->size.bytes, step.result);
      found->second += limits_.Seconds(0, 2 * bytes);
    }
  }
  return found->second;
}

std::vector<double> Moves::SecondsBetween(const rules::Sizes& sizes, double bytes,
                                          const std::vector<int>& from,
                                          const std::vector<int>& to) {
  Words key = {Bits(bytes)};
  key.insert(key.end(), sizes.begin(), sizes.end());
  Known& known = known_[key];
  if (known.size.dims.empty()) {
    for (int64_t extent : sizes) known.size.dims.push_back(std::max<int64_t>(extent, 0));
    known.size.bytes = bytes;
    known.sizes = sizes;
  }
  std::vector<double> seconds;
  seconds.reserve(from.size() * to.size());
  for (int source : from) {
    for (int target : to) seconds.push_back(Find(&known, source, target));
  }
  return seconds;
}

double Moves::SecondsBetweenShards(const rules::FactorRule& rule, rules::PricedTensors operands,
                                   rules::PricedTensors results,
                                   const rules::FactorShardings& factors) {
  return rules::CallCost(&planner_, mesh_, rule, std::move(operands), std::move(results))
      .SecondsBetweenShards(factors);
}

double LocalBytes(const rules::Sizes& sizes, double bytes, const mesh::Sharding& sharding) {
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    const int64_t shards = mesh::NumShards(sharding.dims[d]);
    if (shards < 2) continue;
    bytes /= static_cast<double>(shards);
    if (sizes[d] > 0) {
      bytes *=
          static_cast<double>(mesh::EvenExtent(sizes[d], shards)) / static_cast<double>(sizes[d]);
    }
  }
  return bytes;
}

}  // namespace distir::autosharding
