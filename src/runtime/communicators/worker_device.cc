// Registers kinds of worker devices.
#include "runtime/communicators/worker_device.h"

#include <map>
#include <utility>

#include "support/error.h"

namespace distir::runtime {

namespace {

// A function-local static: they register while libraries are loaded, in any order.
std::map<std::string, WorkerDeviceFactory>& Factories() {
  static std::map<std::string, WorkerDeviceFactory> factories;
  return factories;
}

}  // namespace

bool RegisterWorkerDevice(const std::string& kind, WorkerDeviceFactory factory) {
  Factories()[kind] = factory;
  return true;
}

std::unique_ptr<WorkerDevice> MakeWorkerDevice(const std::string& kind, const WorkerSet& workers,
                                               WaitUntil wait) {
  auto found = Factories().find(kind);
  DISTIR_REQUIRE(found != Factories().end(), ValueError)
      << "workers cannot be on \"" << kind << "\"";
  return found->second(workers, std::move(wait));
}

}  // namespace distir::runtime
