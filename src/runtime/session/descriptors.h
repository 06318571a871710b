/*!
 * \file runtime/session/descriptors.h
 * \brief Resolves the JSON argument `groups` of collectives for one worker.
 *
 * Example, on device 3 of a session of devices 0..3, where ranks equal device ids:
 * \code
 *   ParsePartition("[[0,1],[2,3]]", rank_of)              // {{0, 1}, {2, 3}}
 *   ParseGroups("[[0,1],[2,3]]", 3, rank_of)              // ranks {2, 3}, position 1
 * \endcode
 */
#ifndef DISTIR_RUNTIME_SESSION_DESCRIPTORS_H_
#define DISTIR_RUNTIME_SESSION_DESCRIPTORS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace distir::runtime {

/*! \brief Session rank of a device id; throws for devices that the session lacks. */
using RankOf = std::function<int(int64_t device_id)>;

/*!
 * \brief All groups, as ranks.
 * \param json Lists of device ids; every device is in at most one.
 * \throws ValueError for other text or repeated devices.
 */
std::vector<std::vector<int>> ParsePartition(const std::string& json, const RankOf& rank_of);

/*! \brief A group and the place of one worker in it. */
struct GroupDescriptor {
  std::vector<int> ranks;
  int position = 0;
};

/*!
 * \brief Picks the group of a device.
 * \param json Lists of device ids; every device is in at most one.
 * \throws ValueError for other text, repeated devices, or if `device_id` is in none.
 */
GroupDescriptor ParseGroups(const std::string& json, int device_id, const RankOf& rank_of);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_DESCRIPTORS_H_
