/*!
 * \file analysis/timeline/collective_time.h
 * \brief Time of a collective of a worker's program, from the groups or the plan that the runtime
 * gets.
 *
 * The formulas are those that redistribution is planned by: cost/collective_cost.h for what runs
 * inside groups; for a plan, that of cost/exchange.h on the pieces that the plan gives every
 * device. What a cluster states of collectives that were timed is taken instead.
 */
#ifndef DISTIR_ANALYSIS_TIMELINE_COLLECTIVE_TIME_H_
#define DISTIR_ANALYSIS_TIMELINE_COLLECTIVE_TIME_H_

#include <tvm/ffi/any.h>

#include <map>
#include <string>
#include <utility>

#include "abi/collective.h"
#include "analysis/timeline/measured_times.h"
#include "cost/cluster.h"

namespace distir::analysis {

class CollectiveTimes {
 public:
  /*! \param measured Empty where the cluster states no times. */
  explicit CollectiveTimes(cost::Cluster cluster, MeasuredTimes measured = {})
      : cluster_(std::move(cluster)), measured_(std::move(measured)) {}
  /*! \brief Reads a cluster as plain data for cost::ToCluster, with "times" for measured_times.h.
   */
  static CollectiveTimes Read(const tvm::ffi::Any& cluster);

  /*!
   * \brief Seconds of any collective, as the runtime is told of it.
   * \param kind The name of its record; others take no time. \param how Its groups, or its plan.
   * \param given Bytes of its argument on a device. \param made Bytes of its result there.
   */
  double Of(const std::string& kind, const std::string& how, double given, double made);
  /*! \brief Seconds of a collective inside groups, "[[0,1],[2,3]]"; the slowest group counts.
   * \param bytes Of its argument on a device. */
  double InGroups(const abi::CollectiveRecord& record, const std::string& groups, double bytes);
  /*! \brief Seconds of a transfer or exchange. \param bytes Of the result on a device. */
  double OfTransfer(const std::string& plan, double bytes);
  /*! \brief Seconds of a segment exchange. \param bytes Of the result on a device. */
  double OfSegments(const std::string& plan, double bytes);

 private:
  /*! \brief Seconds of a plan that a function reads. */
  template <typename F>
  double OfPlan(const std::string& plan, double bytes, F step_of);

  struct Groups {
    int64_t size;
    int link;  // the slowest
  };
  cost::Cluster cluster_;
  MeasuredTimes measured_;
  std::map<std::string, Groups> groups_;
  std::map<std::pair<std::string, double>, double> plans_;
};

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_TIMELINE_COLLECTIVE_TIME_H_
