#include "analysis/timeline/collective_time.h"

#include <algorithm>
#include <vector>

#include "abi/json_reader.h"
#include "abi/segment_plan.h"
#include "abi/transfer_plan.h"
#include "cost/collective_cost.h"
#include "cost/exchange.h"
#include "dialect/operators/slot_exchange.h"
#include "dialect/operators/token_dispatch.h"

namespace distir {
namespace analysis {

namespace {

mesh::CollectiveKind KindOf(const std::string& name) {
  for (mesh::CollectiveKind kind : mesh::kAllCollectiveKinds) {
    if (name == mesh::CollectiveName(kind)) return kind;
  }
  if (name == dialect::kDispatchTokens || name == dialect::kCombineTokens ||
      name == dialect::kDispatchSlots || name == dialect::kCombineSlots)
    return mesh::CollectiveKind::kAllToAll;  // where experts are chosen equally often
  return mesh::CollectiveKind::kAllReduce;   // with something fused to it
}

cost::Layout LayoutOf(const abi::Layout& layout, const abi::Blocks& blocks) {
  std::vector<int64_t> block_of;
  for (size_t position = 0; position < layout.device_ids.size(); ++position) {
    const std::vector<int64_t> block = blocks.BlockAt(static_cast<int64_t>(position));
    block_of.insert(block_of.end(), block.begin(), block.end());
  }
  return cost::Layout(&layout.device_ids, blocks.counts(), std::move(block_of));
}

double SecondsOfTransfer(const cost::Cluster& cluster, const std::string& text, double bytes) {
  const abi::TransferPlan plan = abi::ReadTransferPlan(text);
  const abi::Blocks source(plan.source), target(plan.target);
  double whole = bytes;
  for (int64_t count : target.counts()) whole *= static_cast<double>(count);
  return cost::CostOfExchange(cluster, LayoutOf(plan.source, source), LayoutOf(plan.target, target),
                              whole)
      .seconds;
}

/*! \brief The same formula on the pieces that the plan gives each device. */
double SecondsOfSegments(const cost::Cluster& cluster, const std::string& text, double bytes) {
  const abi::SegmentPlan plan = abi::ReadSegmentPlan(text);
  const abi::SegmentPlanner planner(plan);
  double slowest = 0;
  for (int64_t device : plan.target.device_ids) {
    std::map<int64_t, int64_t> received;  // by peer: all pieces of a pair are one message
    for (const abi::SegmentPiece& piece : planner.PartOf(device).receives) {
      if (piece.peer != device) received[piece.peer] += piece.segment.count;
    }
    double latency = 0, seconds = 0;
    for (const auto& [peer, count] : received) {
      const cost::Link& link = cluster.links()[cluster.Between(peer, device)];
      const double share =
          static_cast<double>(count) / static_cast<double>(planner.target_extent());
      latency = std::max(latency, link.latency);
      seconds += link.gap + share * bytes / link.bandwidth;
    }
    if (!received.empty()) slowest = std::max(slowest, latency + seconds);
  }
  return slowest > 0 ? cluster.launch() + slowest : 0;
}

}  // namespace

double CollectiveTimes::Of(const std::string& kind, const std::string& how, double given,
                           double made) {
  if (kind == "send") return 0;  // the side that receives says how long it takes
  if (kind == "segment_exchange") return OfSegments(how, made);
  if (how.empty()) return 0;
  return how[0] == '{' ? OfTransfer(how, made) : InGroups(kind, how, given);
}

double CollectiveTimes::InGroups(const std::string& kind, const std::string& groups, double bytes) {
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
  const mesh::CollectiveKind of_kind = KindOf(kind);
  const int64_t size = known->second.size;
  return With(cost::BytesSent(of_kind, size, bytes), [&](const cost::Cluster& cluster) {
    const cost::Link& link = cluster.links()[known->second.link];
    return cost::Seconds(of_kind, cluster.launch(), link, size, bytes);
  });
}

double CollectiveTimes::OfTransfer(const std::string& plan, double bytes) {
  auto [known, is_new] = plans_.emplace(std::make_pair(plan, bytes), 0);
  if (is_new) {
    known->second = With(bytes, [&](const cost::Cluster& cluster) {
      return SecondsOfTransfer(cluster, plan, bytes);
    });
  }
  return known->second;
}

double CollectiveTimes::OfSegments(const std::string& plan, double bytes) {
  auto [known, is_new] = plans_.emplace(std::make_pair(plan, bytes), 0);
  if (is_new) {
    known->second = With(bytes, [&](const cost::Cluster& cluster) {
      return SecondsOfSegments(cluster, plan, bytes);
    });
  }
  return known->second;
}

}  // namespace analysis
}  // namespace distir
