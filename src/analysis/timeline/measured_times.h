/*!
 * \file analysis/timeline/measured_times.h
 * \brief Measured times of collectives on a host: by kind, members and bytes.
 *
 * Between two sizes that were timed, seconds are interpolated in logarithms of both. A size below
 * all that were timed takes as long as the smallest of them; above the largest, seconds grow in
 * proportion to bytes. If no group of so many members was timed, the nearest number of members is
 * taken, and its seconds are multiplied by the ratio of what a device sends (abi::SentBy).
 *
 * Worked example: an all-gather of 2 members took 10 us for 1 kB and 1 ms for 100 kB. One of 10 kB
 * takes 100 us, of 1 byte 10 us, of 1 MB 10 ms; of 1 kB with 3 members 20 us.
 */
#ifndef DISTIR_ANALYSIS_TIMELINE_MEASURED_TIMES_H_
#define DISTIR_ANALYSIS_TIMELINE_MEASURED_TIMES_H_

#include <tvm/ffi/any.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "abi/collective.h"

namespace distir::analysis {

class MeasuredTimes {
 public:
  /*!
   * \param rows Lists of a collective's name, members of a group, bytes and seconds. The bytes are
   * those of the argument on a device, or, of what moves by a plan, those that a device receives.
   * "permute" is any exchange on the devices of one mesh, "transfer" one to other devices.
   * \throws ValueError for rows of another form, numbers that are not positive and finite, less
   * than 2 members, and kinds that take no time.
   */
  static MeasuredTimes Read(const tvm::ffi::Any& rows);
  /*! \brief Nothing where no time of it was stated. */
  std::optional<double> Seconds(abi::Collective collective, int64_t members, double bytes) const;

 private:
  using BySize = std::map<double, double>;
  std::map<abi::Collective, std::map<int64_t, BySize>> times_;
};

}  // namespace distir::analysis
#endif  // DISTIR_ANALYSIS_TIMELINE_MEASURED_TIMES_H_
