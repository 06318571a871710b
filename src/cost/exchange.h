/*!
 * \file cost/exchange.h
 * \brief Cost of one grouped step of sends and receives that takes every device from its block
 * under one sharding to its block under another: exchanges, permutes and transfers.
 *
 * Every device receives exactly the parts of its target block that it lacks, one message per block
 * of the source that they lie in, each from its nearest holder (abi::TransferPlanner spreads the
 * sending evenly over those). A device that receives messages of b_i bytes over links (alpha_i,
 * g_i, beta_i) is done after launch + max_i alpha_i + sum_i (g_i + b_i / beta_i), and one that
 * sends bytes b_i not before launch + alpha + sum_i b_i / beta_i; the step takes as long as its
 * last device.
 *
 * Worked example, mesh (2, 2), [x | -] to [- | y]: device (0, 0) holds the upper half and wants the
 * left one. It lacks the lower left quarter: one message of a quarter of the tensor.
 */
#ifndef DISTIR_COST_EXCHANGE_H_
#define DISTIR_COST_EXCHANGE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cost/cluster.h"
#include "mesh/sharding.h"

namespace distir::cost {

/*! \brief Block of a tensor on each device of a mesh. The mesh has to outlive it. */
class Layout {
 public:
  Layout(const mesh::Mesh& mesh, const mesh::Sharding& sharding);
  /*!
   * \param counts Blocks per tensor dimension.
   * \param block_of Per device position, one index per dimension.
   */
  Layout(const std::vector<int64_t>* device_ids, std::vector<int64_t> counts,
         std::vector<int64_t> block_of);

  size_t ndim() const { return counts_.size(); }
  int64_t num_devices() const { return static_cast<int64_t>(device_ids_->size()); }
  const std::vector<int64_t>& counts() const { return counts_; }
  /*! \brief The device's block index in each dimension. */
  const int64_t* BlockOf(int64_t position) const { return block_of_.data() + position * ndim(); }
  const std::vector<int64_t>& device_ids() const { return *device_ids_; }
  int64_t DeviceAt(int64_t position) const { return (*device_ids_)[position]; }
  /*! \brief Part of the tensor in one block, 0 to 1. */
  double Fraction() const { return fraction_; }
  /*! \brief The device positions that hold a block, by the block's row-major index; made on first
   * use. */
  const std::vector<std::vector<int64_t>>& Holders() const;

 private:
  const std::vector<int64_t>* device_ids_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> block_of_;
  double fraction_;
  mutable std::vector<std::vector<int64_t>> holders_;
};

struct ExchangeCost {
  double seconds = 0;
  double received = 0;   // bytes that the worst-off device lacks
  double sent = 0;       // bytes that the busiest device sends
  int64_t messages = 0;  // the most that a device receives

  /*! \brief The most that a device sends or receives. */
  double bytes() const { return std::max(received, sent); }
};

/*! \brief Terms of an exchange's time, for a tensor of any size. */
struct ExchangeTerms {
  /*! \brief A device is done after latency + gaps + bytes * per_byte; those that others are not
   * earlier than are left out. */
  struct Device {
    double latency, gaps, per_byte;
  };
  std::vector<Device> devices;
  double received = 0;   // part of the tensor that the worst-off device lacks, 0 to 1
  double sent = 0;       // parts of the tensor that the busiest device sends
  int64_t messages = 0;  // the most that a device receives

  ExchangeCost Cost(double launch, double bytes) const;
};

/*! \brief Indices in Cluster::links() between devices, by position in one list and in another. */
class LinkTable {
 public:
  LinkTable(const Cluster& cluster, const std::vector<int64_t>& from,
            const std::vector<int64_t>& to);
  int Between(int64_t from, int64_t to) const { return links_[from * width_ + to]; }

 private:
  size_t width_;
  std::vector<uint8_t> links_;
};

/*!
 * \brief Terms of an exchange from one layout to another, which may be on different device sets.
 * \param links Between the devices of both; null to ask the cluster.
 */
ExchangeTerms TermsOfExchange(const Cluster& cluster, const Layout& source, const Layout& target,
                              const LinkTable* links = nullptr);
/*! \brief Their cost, of a tensor of `bytes` bytes in all. */
ExchangeCost CostOfExchange(const Cluster& cluster, const Layout& source, const Layout& target,
                            double bytes);

/*!
 * \brief Seconds of an exchange along one dimension cut into `shards` shards, by the formula above:
 * every device gets `received` shards' worth of bytes from the next ones on either side.
 * \param link The slowest link between devices of a group.
 * \param shard_bytes Bytes of one shard.
 */
double SecondsAlongDim(double launch, const Link& link, int64_t shards, double received,
                       double shard_bytes);

}  // namespace distir::cost
#endif  // DISTIR_COST_EXCHANGE_H_
