// Lists for each device the devices that it receives from and sends to in a collective.
#include "analysis/timeline/communication.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "abi/json_reader.h"
#include "abi/segment_plan.h"
#include "abi/transfer_plan.h"

namespace distir::analysis {

namespace {

/*! \brief Numbers devices, and keeps equal lists of them once. */
class Lists {
 public:
  explicit Lists(const std::vector<int64_t>& device_ids) {
    for (size_t i = 0; i < device_ids.size(); ++i) number_of_[device_ids[i]] = static_cast<int>(i);
    found_.sources.assign(device_ids.size(), -1);
    found_.targets.assign(device_ids.size(), -1);
  }

  /*! \brief Number of a device; -1 for those that are not simulated. */
  int NumberOf(int64_t device_id) const {
    auto known = number_of_.find(device_id);
    return known == number_of_.end() ? -1 : known->second;
  }

  int ListOf(const std::set<int64_t>& device_ids) {
    std::vector<int> list;
    for (int64_t id : device_ids) {
      if (NumberOf(id) >= 0) list.push_back(NumberOf(id));
    }
    auto [known, is_new] = index_of_.emplace(list, static_cast<int>(found_.lists.size()));
    if (is_new) found_.lists.push_back(std::move(list));
    return known->second;
  }

  /*! \brief Adds the sources and targets that a plan gives a device. */
  template <typename Part>
  void Add(int64_t device_id, const Part& part) {
    const int device = NumberOf(device_id);
    if (device < 0) return;
    std::set<int64_t> sources, targets;
    for (const auto& piece : part.receives) {
      if (piece.peer != device_id) sources.insert(piece.peer);
    }
    for (const auto& piece : part.sends) {
      if (piece.peer != device_id) targets.insert(piece.peer);
    }
    if (!sources.empty()) found_.sources[device] = ListOf(sources);
    if (!targets.empty()) found_.targets[device] = ListOf(targets);
  }

  void AddGroup(const std::vector<int64_t>& group) {
    const int list = ListOf({group.begin(), group.end()});
    for (int device : found_.lists[list]) found_.sources[device] = found_.targets[device] = list;
  }

  Communication Done() && { return std::move(found_); }

 private:
  std::unordered_map<int64_t, int> number_of_;
  std::map<std::vector<int>, int> index_of_;
  Communication found_;
};

template <typename Plan, typename Planner>
Communication OfPlan(const Plan& plan, const std::vector<int64_t>& device_ids) {
  const Planner planner(plan);
  std::set<int64_t> members(plan.source.device_ids.begin(), plan.source.device_ids.end());
  members.insert(plan.target.device_ids.begin(), plan.target.device_ids.end());
  Lists lists(device_ids);
  for (int64_t device : members) lists.Add(device, planner.PartOf(device));
  return std::move(lists).Done();
}

}  // namespace

Communication InGroups(const std::string& groups, const std::vector<int64_t>& device_ids) {
  const abi::JsonReader list = abi::JsonReader::Parse("groups", groups);
  Lists lists(device_ids);
  for (int64_t i = 0; i < list.Size(); ++i) lists.AddGroup(list.At(i).Integers());
  return std::move(lists).Done();
}

Communication OfTransfer(const std::string& plan, const std::vector<int64_t>& device_ids) {
  return OfPlan<abi::TransferPlan, abi::TransferPlanner>(abi::ReadTransferPlan(plan), device_ids);
}

Communication OfSegments(const std::string& plan, const std::vector<int64_t>& device_ids) {
  return OfPlan<abi::SegmentPlan, abi::SegmentPlanner>(abi::ReadSegmentPlan(plan), device_ids);
}

}  // namespace distir::analysis
