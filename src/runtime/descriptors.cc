#include "runtime/descriptors.h"

#include <algorithm>
#include <set>

#include "runtime/json_reader.h"

namespace distir::runtime {

GroupDescriptor ParseGroups(const std::string& json, int device_id, const RankOf& rank_of) {
  JsonReader groups = JsonReader::Parse("groups", json);
  GroupDescriptor mine;
  std::set<int64_t> seen;
  for (int64_t g = 0; g < groups.Size(); ++g) {
    JsonReader group = groups.At(g);
    const std::vector<int64_t> devices = group.Integers();
    for (size_t i = 0; i < devices.size(); ++i) {
      if (!seen.insert(devices[i]).second) {
        group.Fail("device " + std::to_string(devices[i]) + " occurs twice");
      }
      if (devices[i] != device_id) continue;
      mine.position = static_cast<int>(i);
      for (int64_t device : devices) mine.ranks.push_back(rank_of(device));
    }
  }
  if (mine.ranks.empty()) {
    groups.Fail("no group of " + json + " has device " + std::to_string(device_id) +
                ", which runs this collective");
  }
  return mine;
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
