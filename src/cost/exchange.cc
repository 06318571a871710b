#include "cost/exchange.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

namespace distir {
namespace cost {

namespace {

std::vector<int64_t> CountsOf(const mesh::Sharding& sharding) {
  std::vector<int64_t> counts;
  for (const mesh::AxisList& axes : sharding.dims) counts.push_back(mesh::NumShards(axes));
  return counts;
}

std::vector<int64_t> BlocksOf(const mesh::Mesh& mesh, const mesh::Sharding& sharding) {
  std::vector<int64_t> blocks;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const std::vector<int64_t> at = mesh.Coordinates(position);
    for (const mesh::AxisList& axes : sharding.dims) {
      blocks.push_back(mesh::ShardIndex(mesh, axes, at));
    }
  }
  return blocks;
}

}  // namespace

Layout::Layout(const mesh::Mesh& mesh, const mesh::Sharding& sharding)
    : Layout(&mesh.device_ids, CountsOf(sharding), BlocksOf(mesh, sharding)) {}

Layout::Layout(const std::vector<int64_t>* device_ids, std::vector<int64_t> counts,
               std::vector<int64_t> block_of)
    : device_ids_(device_ids), counts_(std::move(counts)), block_of_(std::move(block_of)) {
  fraction_ = 1;
  for (int64_t count : counts_) fraction_ /= static_cast<double>(count);
}

const std::vector<std::vector<int64_t>>& Layout::Holders() const {
  if (!holders_.empty()) return holders_;
  int64_t num_blocks = 1;
  for (int64_t count : counts_) num_blocks *= count;
  holders_.resize(num_blocks);
  for (int64_t position = 0; position < num_devices(); ++position) {
    int64_t index = 0;
    for (size_t d = 0; d < ndim(); ++d) index = index * counts_[d] + BlockOf(position)[d];
    holders_[index].push_back(position);
  }
  return holders_;
}

namespace {

/*! \brief Part of dimension `d` (0 to 1) that block `from` of `source` and block `to` of `target`
 * share. */
double Shared(const Layout& source, int64_t from, const Layout& target, int64_t to, size_t d) {
  const int64_t of_source = source.counts()[d], of_target = target.counts()[d];
  const int64_t begin = std::max(from * of_target, to * of_source);
  const int64_t end = std::min((from + 1) * of_target, (to + 1) * of_source);
  return begin < end ? static_cast<double>(end - begin) /
                           (static_cast<double>(of_source) * static_cast<double>(of_target))
                     : 0.0;
}

/*! \brief What devices receive, one after the other. */
class Receiver {
 public:
  Receiver(const Cluster& cluster, const Layout& source, const Layout& target, double bytes)
      : cluster_(cluster),
        source_(source),
        target_(target),
        bytes_(bytes),
        first_(source.ndim()),
        last_(source.ndim()) {}

  /*!
   * \param position The device's position in the target.
   * \param own Its position in the source, or -1.
   */
  ExchangeCost Cost(int64_t position, int64_t own) {
    device_ = target_.DeviceAt(position);
    wanted_ = target_.BlockOf(position);
    int64_t blocks = 1;
    for (size_t d = 0; d < source_.ndim(); ++d) {
      const int64_t of_source = source_.counts()[d], of_target = target_.counts()[d];
      first_[d] = wanted_[d] * of_source / of_target;
      last_[d] = ((wanted_[d] + 1) * of_source - 1) / of_target;
      blocks *= last_[d] - first_[d] + 1;
    }
    owns_block_ = own >= 0;
    if (owns_block_) own_block_ = source_.BlockOf(own);
    double held = owns_block_ ? SharedWith(own_block_) : 0;
    ExchangeCost cost;
    cost.messages = blocks - (held > 0 ? 1 : 0);
    if (cost.messages == 0) return cost;
    cost.received = (target_.Fraction() - held) * bytes_;
    cost.seconds = cluster_.IsUniform() ? cluster_.links()[0].Seconds(cost.messages, cost.received)
                                        : SecondsByNearest();
    return cost;
  }

 private:
  double SharedWith(const int64_t* block) const {
    double share = 1;
    for (size_t d = 0; d < source_.ndim(); ++d)
      share *= Shared(source_, block[d], target_, wanted_[d], d);
    return share;
  }

  double SecondsByNearest() const {
    double seconds = 0, latency = 0;
    std::vector<int64_t> block = first_;
    for (bool more = true; more;) {
      if (!owns_block_ || !std::equal(block.begin(), block.end(), own_block_)) {
        int64_t index = 0;
        for (size_t d = 0; d < block.size(); ++d) index = index * source_.counts()[d] + block[d];
        int nearest = static_cast<int>(cluster_.links().size());
        for (int64_t holder : source_.Holders()[index]) {
          nearest = std::min(nearest, cluster_.Between(source_.DeviceAt(holder), device_));
        }
        const Link& link = cluster_.links()[nearest];
        seconds += link.gap + SharedWith(block.data()) * bytes_ / link.bandwidth;
        latency = std::max(latency, link.latency);
      }
      more = false;
      for (size_t d = block.size(); d-- > 0;) {
        if (block[d] < last_[d]) {
          ++block[d];
          more = true;
          break;
        }
        block[d] = first_[d];
      }
    }
    return latency + seconds;
  }

  const Cluster& cluster_;
  const Layout& source_;
  const Layout& target_;
  double bytes_;
  int64_t device_ = -1;
  const int64_t* wanted_ = nullptr;
  bool owns_block_ = false;
  const int64_t* own_block_ = nullptr;  // of a scalar too, which has no index
  std::vector<int64_t> first_, last_;   // of the source's blocks that the wanted one overlaps
};

}  // namespace

ExchangeCost CostOfExchange(const Cluster& cluster, const Layout& source, const Layout& target,
                            double bytes) {
  const bool same_devices = source.device_ids() == target.device_ids();
  std::unordered_map<int64_t, int64_t> position_of;
  if (!same_devices) {
    for (int64_t p = 0; p < source.num_devices(); ++p) position_of[source.DeviceAt(p)] = p;
  }
  Receiver receiver(cluster, source, target, bytes);
  ExchangeCost worst;
  for (int64_t position = 0; position < target.num_devices(); ++position) {
    int64_t own = position;
    if (!same_devices) {
      auto found = position_of.find(target.DeviceAt(position));
      own = found == position_of.end() ? -1 : found->second;
    }
    ExchangeCost cost = receiver.Cost(position, own);
    worst.seconds = std::max(worst.seconds, cost.seconds);
    worst.received = std::max(worst.received, cost.received);
    worst.messages = std::max(worst.messages, cost.messages);
  }
  if (worst.messages > 0) worst.seconds += cluster.launch();
  return worst;
}

double SecondsAlongDim(double launch, const Link& link, int64_t shards, double received,
                       double shard_bytes) {
  if (received <= 0 || shards <= 1) return 0;
  // What is received straddles one border between shards more than it is long.
  const double messages = std::min(static_cast<double>(shards - 1), 1 + std::ceil(received));
  return launch + link.Seconds(static_cast<int64_t>(messages), received * shard_bytes);
}

}  // namespace cost
}  // namespace distir
