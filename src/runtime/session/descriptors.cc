// Resolves the JSON argument `groups` for one worker.
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

}  // namespace distir::runtime
