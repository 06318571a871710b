/*!
 * \file analysis/timeline/communication.h
 * \brief Sources and targets of each device in a collective, read off the groups or the plan that
 * the runtime gets.
 *
 * Worked example: of groups [[4, 5], [6, 7]] and the devices 4, 5, 6, 7, the lists are {0, 1} and
 * {2, 3}, and each device has its own as sources and as targets. In a transfer of shards from 4, 5
 * to 6, 7, device 2 (id 6) has {0} as sources, and device 0 has {2} as targets.
 */
#ifndef DISTIR_ANALYSIS_TIMELINE_COMMUNICATION_H_
#define DISTIR_ANALYSIS_TIMELINE_COMMUNICATION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace distir::analysis {

/*! \brief Devices are numbered by their place in a list of ids. */
struct Communication {
  std::vector<std::vector<int>> lists;
  /*! \brief List of the devices whose data each device needs; -1: none. */
  std::vector<int> sources;
  /*! \brief List of the devices that need each device's data; -1: none. */
  std::vector<int> targets;
};

/*! \brief Reads a collective inside groups, "[[0,1],[2,3]]". */
Communication InGroups(const std::string& groups, const std::vector<int64_t>& device_ids);
/*! \brief Reads a transfer or exchange (abi/transfer_plan.h). */
Communication OfTransfer(const std::string& plan, const std::vector<int64_t>& device_ids);
/*! \brief Reads a segment exchange (abi/segment_plan.h). */
Communication OfSegments(const std::string& plan, const std::vector<int64_t>& device_ids);

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_TIMELINE_COMMUNICATION_H_
