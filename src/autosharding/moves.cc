// Plans redistributions, and remembers how long they take.
#include "autosharding/moves.h"

#include <algorithm>
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

void Append(const mesh::Sharding& sharding, Words* key) {
  for (const mesh::AxisList& dim : sharding.dims) Append(dim, key);
  Append(sharding.partial, key);
}

}  // namespace

double Moves::Seconds(const rules::Sizes& sizes, double bytes, const mesh::Sharding& from,
                      const mesh::Sharding& to) {
  if (from.partial.empty() && from.dims == to.dims) return 0;
  key_ = {static_cast<int64_t>(sizes.size()), Bits(bytes), static_cast<int64_t>(from.reduction)};
  key_.insert(key_.end(), sizes.begin(), sizes.end());
  Append(from, &key_);
  Append(to, &key_);
  auto [found, is_new] = known_.emplace(key_, 0);
  if (is_new) {
    planning::TensorSize size;
    for (int64_t extent : sizes) size.dims.push_back(std::max<int64_t>(extent, 0));
    size.bytes = bytes;
    found->second = planner_.Find(mesh_, from, to, planning::PaddedFor(size, from, to)).seconds;
  }
  return found->second;
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
      bytes *= static_cast<double>(mesh::EvenExtent(sizes[d], shards)) /
               static_cast<double>(sizes[d]);
    }
  }
  return bytes;
}

}  // namespace distir::autosharding
