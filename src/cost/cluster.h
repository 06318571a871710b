/*!
 * \file cost/cluster.h
 * \brief Links between devices: latency, gap and bandwidth per axis of a mesh.
 *
 * m messages that a device sends and receives at the same time, of b bytes in all, take alpha + m g
 * + b / beta seconds (LogGP: Alexandrov and others, "LogGP: incorporating long messages into the
 * LogP model", 1995); starting a collective takes a time of its own. A cluster is a mesh of devices
 * with one link per axis; two devices that differ along several axes are joined by the slowest of
 * their links.
 *
 * Worked example: 2 hosts of 4 devices, mesh (2, 4) with InfiniBand along the first axis and NVLink
 * along the second. Seen as a mesh (8), the sub-axis x:(1)2 is InfiniBand and x:(2)4 is NVLink.
 */
#ifndef DISTIR_COST_CLUSTER_H_
#define DISTIR_COST_CLUSTER_H_

#include <tvm/ffi/any.h>

#include <unordered_map>
#include <vector>

#include "abi/layout.h"
#include "mesh/sharding.h"

namespace distir::cost {

/*! \brief A device's way to others; both directions work at the same time. */
struct Link {
  double latency;    // seconds until a message arrives, alpha
  double gap;        // seconds between messages that a device sends at the same time, g
  double bandwidth;  // bytes per second in each direction, beta

  /*! \brief Messages at the same time, of `bytes` in all. */
  double Seconds(int64_t messages, double bytes) const {
    return latency + static_cast<double>(messages) * gap + bytes / bandwidth;
  }
};

class Cluster {
 public:
  /*! \brief All devices joined alike, by NVLink. */
  Cluster();
  /*!
   * \brief All devices joined alike.
   * \param launch Seconds that starting a collective takes, whatever its size.
   */
  Cluster(Link link, double launch);
  /*!
   * \brief One link per axis of `mesh`. Devices that it lacks are joined by its slowest link.
   * \throws ValueError when there is not one link per axis, or a link has no positive bandwidth or
   * a negative time.
   */
  Cluster(const mesh::Mesh& mesh, std::vector<Link> links, double launch);

  double launch() const { return launch_; }
  bool IsUniform() const { return links_.size() == 1; }
  /*! \brief All links, the faster (by bandwidth, then latency) first. */
  const std::vector<Link>& links() const { return links_; }
  /*! \brief The index in links() of the link between two devices, by id; 0 for a device and itself.
   */
  int Between(int64_t device, int64_t other) const;
  /*! \brief The slowest link between any two devices of a group, by id: an index in links(). */
  int Slowest(const std::vector<int64_t>& group) const;
  /*! \brief The slowest link between any two devices of a group along `axes`: an index in links().
   */
  int Along(const mesh::Mesh& mesh, const mesh::AxisList& axes) const;
  /*!
   * \brief Numbers that are equal for devices that are joined alike: the first device of one list
   * to the second as the first of another to its second, and so on.
   *
   * Worked example, hosts of 4: {0, 2, 4, 6} and {1, 3, 5, 7} are joined alike, since 0, 2 and 1, 3
   * are on one host. {0, 1, 2, 3} is joined otherwise.
   */
  std::vector<int64_t> PatternOf(const std::vector<int64_t>& devices) const;
  /*! \brief Closeness of some devices to each other, for plans: those of one ball of a level are
   * joined by links up to an index. Levels that tell none of these devices apart, or all, are left
   * out. */
  abi::Closeness ClosenessAmong(const std::vector<int64_t>& devices) const;

 private:
  void Check() const;

  double launch_;
  std::vector<Link> links_;
  mesh::Mesh mesh_;  // empty where all devices are joined alike
  std::vector<int> link_of_axis_;
  std::unordered_map<int64_t, std::vector<int64_t>> coordinates_;  // by device id
};

/*! \brief The attribute of a module that states its cluster. */
constexpr const char* kClusterAttr = "distir.cluster";

/*!
 * \brief A cluster as plain data: a map with "latency", "gap" and "bandwidth", lists with one
 * number per axis, "launch", and "shape" and "device_ids" of the mesh; without "shape", one link
 * joins all. Nothing (None) is the default cluster.
 * \throws ValueError naming what is missing or of another form.
 */
Cluster ToCluster(const tvm::ffi::Any& data);

}  // namespace distir::cost
#endif  // DISTIR_COST_CLUSTER_H_
