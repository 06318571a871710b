// Computes the cost of one grouped step of sends and receives between two shardings.
#include "cost/exchange.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

namespace distir::cost {

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

/*! \brief Sums up what devices receive, one device after the other, and what holders send. */
class Receiver {
 public:
  Receiver(const Cluster& cluster, const Layout& source, const Layout& target,
           const LinkTable* links)
      : cluster_(cluster),
        source_(source),
        target_(target),
        links_(links),
        first_(source.ndim()),
        last_(source.ndim()),
        sends_(source.num_devices()),
        kept_(NumBlocks(source)) {}

  /*!
   * \brief Adds what a device receives.
   * \param position The device's position in the target.
   * \param own Its position in the source, or -1.
   */
  void Add(int64_t position, int64_t own, ExchangeTerms* terms) {
    position_ = position;
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
    if (owns_block_) kept_[NumberOf(own_block_)] += held;
    const int64_t messages = blocks - (held > 0 ? 1 : 0);
    if (messages == 0) return;
    const double received = target_.Fraction() - held;
    terms->messages = std::max(terms->messages, messages);
    terms->received = std::max(terms->received, received);
    if (!cluster_.IsUniform()) return AddDevice(OverNearest(), terms);
    const Link& link = cluster_.links()[0];
    AddDevice({link.latency, static_cast<double>(messages) * link.gap, received / link.bandwidth},
              terms);
  }

  /*! \brief Adds what the busiest device sends, after all devices. */
  void AddSends(ExchangeTerms* terms) {
    if (terms->messages == 0) return;
    const auto devices = static_cast<double>(source_.num_devices());
    const double holders = devices / static_cast<double>(NumBlocks(source_));
    const double wanted = source_.Fraction() * static_cast<double>(target_.num_devices()) /
                          static_cast<double>(NumBlocks(target_));
    for (double kept : kept_) terms->sent = std::max(terms->sent, (wanted - kept) / holders);
    if (cluster_.IsUniform()) {
      const Link& link = cluster_.links()[0];
      return AddDevice({link.latency, 0, terms->sent / link.bandwidth}, terms);
    }
    for (const ExchangeTerms::Device& each : sends_) AddDevice(each, terms);
  }

 private:
  static int64_t NumBlocks(const Layout& layout) {
    int64_t blocks = 1;
    for (int64_t count : layout.counts()) blocks *= count;
    return blocks;
  }

  /*! \brief The row-major index of a block of the source. */
  int64_t NumberOf(const int64_t* block) const {
    int64_t number = 0;
    for (size_t d = 0; d < source_.ndim(); ++d) number = number * source_.counts()[d] + block[d];
    return number;
  }

  double SharedWith(const int64_t* block) const {
    double share = 1;
    for (size_t d = 0; d < source_.ndim(); ++d)
      share *= Shared(source_, block[d], target_, wanted_[d], d);
    return share;
  }

  /*! \brief Most devices receive alike. */
  static void AddDevice(const ExchangeTerms::Device& device, ExchangeTerms* terms) {
    for (const ExchangeTerms::Device& each : terms->devices) {
      if (device.latency <= each.latency && device.gaps <= each.gaps &&
          device.per_byte <= each.per_byte)
        return;
    }
    terms->devices.push_back(device);
  }

  int LinkFrom(int64_t holder) const {
    return links_ != nullptr
               ? links_->Between(holder, position_)
               : cluster_.Between(source_.DeviceAt(holder), target_.DeviceAt(position_));
  }

  ExchangeTerms::Device OverNearest() {
    ExchangeTerms::Device found{0, 0, 0};
    std::vector<int64_t>& block = at_;
    block = first_;
    for (bool more = true; more;) {
      if (!owns_block_ || !std::equal(block.begin(), block.end(), own_block_)) {
        nearest_.clear();
        int least = static_cast<int>(cluster_.links().size());
        for (int64_t holder : source_.Holders()[NumberOf(block.data())]) {
          const int link = LinkFrom(holder);
          if (link < least) nearest_.clear();
          least = std::min(least, link);
          if (link == least) nearest_.push_back(holder);
        }
        const Link& link = cluster_.links()[least];
        const double seconds = SharedWith(block.data()) / link.bandwidth;
        found.gaps += link.gap;
        found.per_byte += seconds;
        found.latency = std::max(found.latency, link.latency);
        for (int64_t holder : nearest_) {
          ExchangeTerms::Device& sends = sends_[holder];
          sends.latency = std::max(sends.latency, link.latency);
          sends.per_byte += seconds / static_cast<double>(nearest_.size());
        }
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
    return found;
  }

  const Cluster& cluster_;
  const Layout& source_;
  const Layout& target_;
  const LinkTable* links_;
  int64_t position_ = -1;
  const int64_t* wanted_ = nullptr;
  bool owns_block_ = false;
  const int64_t* own_block_ = nullptr;        // of a scalar too, which has no index
  std::vector<int64_t> first_, last_;         // of the source's blocks that the wanted one overlaps
  std::vector<int64_t> at_;                   // one of these
  std::vector<int64_t> nearest_;              // holders of it
  std::vector<ExchangeTerms::Device> sends_;  // of each device, where links differ
  std::vector<double> kept_;  // of each block of the source, what its holders want themselves
};

}  // namespace

ExchangeCost ExchangeTerms::Cost(double launch, double bytes) const {
  ExchangeCost cost{0, received * bytes, sent * bytes, messages};
  for (const Device& each : devices)
    cost.seconds = std::max(cost.seconds, each.latency + (each.gaps + bytes * each.per_byte));
  if (messages > 0) cost.seconds += launch;
  return cost;
}

LinkTable::LinkTable(const Cluster& cluster, const std::vector<int64_t>& from,
                     const std::vector<int64_t>& to)
    : width_(to.size()) {
  links_.reserve(from.size() * to.size());
  for (int64_t device : from) {
    for (int64_t other : to) links_.push_back(static_cast<uint8_t>(cluster.Between(device, other)));
  }
}

ExchangeTerms TermsOfExchange(const Cluster& cluster, const Layout& source, const Layout& target,
                              const LinkTable* links) {
  const bool same_devices = source.device_ids() == target.device_ids();
  std::unordered_map<int64_t, int64_t> position_of;
  if (!same_devices) {
    for (int64_t p = 0; p < source.num_devices(); ++p) position_of[source.DeviceAt(p)] = p;
  }
  Receiver receiver(cluster, source, target, links);
  ExchangeTerms terms;
  for (int64_t position = 0; position < target.num_devices(); ++position) {
    int64_t own = position;
    if (!same_devices) {
      auto found = position_of.find(target.DeviceAt(position));
      own = found == position_of.end() ? -1 : found->second;
    }
    receiver.Add(position, own, &terms);
  }
  receiver.AddSends(&terms);
  return terms;
}

ExchangeCost CostOfExchange(const Cluster& cluster, const Layout& source, const Layout& target,
                            double bytes) {
  return TermsOfExchange(cluster, source, target).Cost(cluster.launch(), bytes);
}

double SecondsAlongDim(double launch, const Link& link, int64_t shards, double received,
                       double shard_bytes) {
  if (received <= 0 || shards <= 1) return 0;
  // A received range straddles at most one more shard than its length.
  const double messages = std::min(static_cast<double>(shards - 1), 1 + std::ceil(received));
  return launch + link.Seconds(static_cast<int64_t>(messages), received * shard_bytes);
}

}  // namespace distir::cost
