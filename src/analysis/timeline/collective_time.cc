// Computes the time of a collective from its groups or plan with the formulas of src/cost.
#include "analysis/timeline/collective_time.h"

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "abi/json_reader.h"
#include "abi/segment_plan.h"
#include "abi/transfer_plan.h"
#include "cost/collective_cost.h"
#include "cost/exchange.h"

namespace distir::analysis {

namespace ffi = tvm::ffi;

namespace {

cost::Layout LayoutOf(const abi::Layout& layout, const abi::Blocks& blocks) {
  std::vector<int64_t> block_of;
  for (size_t position = 0; position < layout.device_ids.size(); ++position) {
    const std::vector<int64_t> block = blocks.BlockAt(static_cast<int64_t>(position));
    block_of.insert(block_of.end(), block.begin(), block.end());
  }
  return cost::Layout(&layout.device_ids, blocks.counts(), std::move(block_of));
}

/*! \brief Modelled time of a step that moves pieces by a plan, with the key of measured times. */
struct PlannedStep {
  abi::Collective timed_as;  // kPermute on one set of devices, else kTransfer
  int64_t devices;
  double received;  // bytes, on the device that receives or sends most
  double seconds;
};

abi::Collective TimedBetween(const abi::Layout& source, const abi::Layout& target) {
  return source.device_ids == target.device_ids ? abi::Collective::kPermute
                                                : abi::Collective::kTransfer;
}

PlannedStep StepOfTransfer(const cost::Cluster& cluster, const std::string& text, double bytes) {
  const abi::TransferPlan plan = abi::ReadTransferPlan(text);
  const abi::Blocks source(plan.source), target(plan.target);
  double whole = bytes;
  for (int64_t count : target.counts()) whole *= static_cast<double>(count);
  const cost::ExchangeCost cost = cost::CostOfExchange(cluster, LayoutOf(plan.source, source),
                                                       LayoutOf(plan.target, target), whole);
  return {TimedBetween(plan.source, plan.target),
          static_cast<int64_t>(plan.target.device_ids.size()), cost.bytes(), cost.seconds};
}

/*! \brief PlannedStep of a segment exchange, by the pieces that the plan gives each device. */
PlannedStep StepOfSegments(const cost::Cluster& cluster, const std::string& text, double bytes) {
  const abi::SegmentPlan plan = abi::ReadSegmentPlan(text);
  const abi::SegmentPlanner planner(plan);
  PlannedStep step{TimedBetween(plan.source, plan.target),
                   static_cast<int64_t>(plan.target.device_ids.size()), 0, 0};
  for (int64_t device : plan.target.device_ids) {
    std::map<int64_t, int64_t> received;  // by peer: all pieces of a pair are one message
    for (const abi::SegmentPiece& piece : planner.PartOf(device).receives) {
      if (piece.peer != device) received[piece.peer] += piece.segment.count;
    }
    double latency = 0, seconds = 0, all = 0;
    for (const auto& [peer, count] : received) {
      const cost::Link& link = cluster.links()[cluster.Between(peer, device)];
      const double share =
          static_cast<double>(count) / static_cast<double>(planner.target_extent());
      latency = std::max(latency, link.latency);
      seconds += link.gap + share * bytes / link.bandwidth;
      all += share * bytes;
    }
    step.received = std::max(step.received, all);
    if (!received.empty()) step.seconds = std::max(step.seconds, latency + seconds);
  }
  if (step.seconds > 0) step.seconds += cluster.launch();
  return step;
}

}  // namespace

double CollectiveTimes::Of(const std::string& kind, const std::string& how, double given,
                           double made) {
  const abi::CollectiveRecord* record = abi::FindCollective(kind);
  // Of a transfer, the side that receives says how long it takes.
  if (record == nullptr || how.empty() || !record->has_result) return 0;
  switch (record->members) {
    case abi::Members::kNone:
      return 0;
    case abi::Members::kGroups:
      return InGroups(*record, how, given);
    case abi::Members::kTransfer:
      return OfTransfer(how, made);
    case abi::Members::kSegments:
      return OfSegments(how, made);
  }
  return 0;
}

double CollectiveTimes::InGroups(const abi::CollectiveRecord& record, const std::string& groups,
                                 double bytes) {
  auto [known, is_new] = groups_.emplace(groups, Groups{1, 0});
  if (is_new) {
    const abi::JsonReader list = abi::JsonReader::Parse("groups", groups);
    for (int64_t i = 0; i < list.Size(); ++i) {
      const std::vector<int64_t> group = list.At(i).Integers();
      if (group.empty()) continue;
      known->second.size = static_cast<int64_t>(group.size());
      known->second.link = std::max(known->second.link, cluster_.Slowest(group));
    }
  }
  const auto [size, link] = known->second;
  if (size > 1 && bytes > 0) {
    if (const auto measured = measured_.Seconds(record.timed_as, size, bytes)) return *measured;
  }
  return cost::Seconds(record.collective, cluster_.launch(), cluster_.links()[link], size, bytes);
}

double CollectiveTimes::OfTransfer(const std::string& plan, double bytes) {
  return OfPlan(plan, bytes, StepOfTransfer);
}

double CollectiveTimes::OfSegments(const std::string& plan, double bytes) {
  return OfPlan(plan, bytes, StepOfSegments);
}

template <typename F>
double CollectiveTimes::OfPlan(const std::string& plan, double bytes, F step_of) {
  auto [known, is_new] = plans_.emplace(std::make_pair(plan, bytes), 0);
  if (is_new) {
    const PlannedStep step = step_of(cluster_, plan, bytes);
    known->second = step.seconds;
    if (step.received > 0) {
      known->second =
          measured_.Seconds(step.timed_as, std::max<int64_t>(2, step.devices), step.received)
              .value_or(step.seconds);
    }
  }
  return known->second;
}

CollectiveTimes CollectiveTimes::Read(const ffi::Any& cluster) {
  MeasuredTimes measured;
  if (const auto data = cluster.as<ffi::Map<ffi::String, ffi::Any>>()) {
    const auto times = data->find("times");
    if (times != data->end()) measured = MeasuredTimes::Read((*times).second);
  }
  return CollectiveTimes(cost::ToCluster(cluster), std::move(measured));
}

}  // namespace distir::analysis
