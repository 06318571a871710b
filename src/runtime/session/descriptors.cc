#include "runtime/session/descriptors.h"

#include <algorithm>
#include <set>

#include "abi/json_reader.h"

namespace distir::runtime {

using abi::JsonReader;

namespace {

std::vector<std::vector<int64_t>> ParseDevices(const JsonReader& groups) {
  std::vector<std::vector<int64_t>> parsed;
  std::set<int64_t> seen;
  for (int64_t g = 0; g < groups.Size(); ++g) {
    JsonReader group = groups.At(g);
    parsed.push_back(group.Integers());
    for (int64_t device : parsed.back()) {
      if (!seen.insert(device).second)
        group.Fail("device " + std::to_string(device) + " occurs twice");
    }
  }
  return parsed;
}

std::vector<int> RanksOf(const std::vector<int64_t>& devices, const RankOf& rank_of) {
  std::vector<int> ranks;
  for (int64_t device : devices) ranks.push_back(rank_of(device));
  return ranks;
}

}  // namespace

std::vector<std::vector<int>> ParsePartition(const std::string& json, const RankOf& rank_of) {
  std::vector<std::vector<int>> groups;
  for (const std::vector<int64_t>& devices : ParseDevices(JsonReader::Parse("groups", json)))
    groups.push_back(RanksOf(devices, rank_of));
  return groups;
}

GroupDescriptor ParseGroups(const std::string& json, int device_id, const RankOf& rank_of) {
  JsonReader groups = JsonReader::Parse("groups", json);
  for (const std::vector<int64_t>& devices : ParseDevices(groups)) {
    const auto mine = std::find(devices.begin(), devices.end(), device_id);
    if (mine != devices.end())
      return {RanksOf(devices, rank_of), static_cast<int>(mine - devices.begin())};
  }
  groups.Fail("no group of " + json + " has device " + std::to_string(device_id) +
              ", which runs this collective");
}

PermutationDescriptor ParsePermutation(const std::string& groups_json,
                                       const std::string& pairs_json, int device_id,
                                       const RankOf& rank_of) {
  const GroupDescriptor group = ParseGroups(groups_json, device_id, rank_of);
  const int size = static_cast<int>(group.ranks.size());
  JsonReader pairs = JsonReader::Parse("pairs", pairs_json);
  std::vector<int> target_of(size, -1), source_of(size, -1);
  auto position_of = [&](const JsonReader& place, int64_t device) {
    auto found = std::find(group.ranks.begin(), group.ranks.end(), rank_of(device));
    if (found == group.ranks.end()) {
      place.Fail("device " + std::to_string(device) + " is not in the group " + groups_json);
    }
    return static_cast<int>(found - group.ranks.begin());
  };
  for (int64_t i = 0; i < pairs.Size(); ++i) {
    JsonReader pair = pairs.At(i);
    const int source = position_of(pair, pair.At(0).Integer());
    const int target = position_of(pair, pair.At(1).Integer());
    if (target_of[source] != -1 || source_of[target] != -1) {
      pair.Fail("a device occurs twice as source or as target");
    }
    target_of[source] = target;
    source_of[target] = source;
  }
  if (std::count(target_of.begin(), target_of.end(), -1) != 0) {
    pairs.Fail("the pairs are not a permutation of the group " + groups_json);
  }
  return PermutationDescriptor{source_of[group.position], target_of[group.position]};
}

}  // namespace distir::runtime
