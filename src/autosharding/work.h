/*!
 * \file autosharding/work.h
 * \brief Looks up the work (operations, bytes) of each call of a program on one device, as counted.
 *
 * Calls are outlined before they are counted (analysis/operator_calls.h), so that equal calls share
 * a count. A function of the outlined module has the bindings of the original one, in its order.
 *
 * Worked example: `lv = R.matmul(x, w)` of the program is `lv = cls.operator_3(x, w)` in the
 * outlined module, and the counts have an entry for `operator_3`.
 */
#ifndef DISTIR_AUTOSHARDING_WORK_H_
#define DISTIR_AUTOSHARDING_WORK_H_

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "autosharding/fusion.h"
#include "ir/node.h"
#include "stages/work.h"

namespace distir::autosharding {

namespace ffi = tvm::ffi;

/*! \brief A kernel of a call, as it would be if it were not fused. */
struct KernelWork {
  double computing = 0;  // seconds of all operations
  double read = 0;       // bytes
  double written = 0;    // bytes
  int pattern = kOpaque;
};

struct Work {
  std::vector<KernelWork> kernels = {KernelWork()};  // one after the other, at least one
  bool is_view = true;  // nothing is computed, unless it is fused with what is
};

/*! \brief Limits of a device beside its operations. */
struct DeviceLimits {
  double launch;                    // seconds that a kernel takes at least
  double bandwidth;                 // bytes per second
  std::map<double, double> caches;  // bytes per second of kernels that access up to so many
  stages::DeviceSpeed speed;        // of calls that were not counted

  double BandwidthOf(double bytes) const {
    auto cache = caches.lower_bound(bytes);
    return cache == caches.end() ? bandwidth : cache->second;
  }
  /*! \brief Seconds of a kernel by the roofline. */
  double Seconds(double computing, double bytes) const {
    return std::max({computing, bytes / BandwidthOf(bytes), launch});
  }
};

class Works {
 public:
  /*!
   * \param outlined The module, its calls outlined.
   * \param counts By the name of an outlined function.
   */
  Works(const ir::IRModule& mod, const ir::IRModule& outlined,
        const std::unordered_map<std::string, Work>& counts, const DeviceLimits& limits);

  /*! \brief The work of a call; none for one that computes nothing. */
  Work Of(const ffi::Object* call) const;

 private:
  std::unordered_map<const ffi::Object*, Work> works_;  // by call
};

}  // namespace distir::autosharding
#endif  // DISTIR_AUTOSHARDING_WORK_H_
