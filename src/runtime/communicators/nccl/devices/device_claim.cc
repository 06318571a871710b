#include "runtime/communicators/nccl/devices/device_claim.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

// How long a session waits for the workers of one that has failed.
constexpr std::chrono::seconds kEndOfWorkers{5};

struct Claims {
  std::mutex mutex;
  std::condition_variable changed;
  struct Claim {
    const DeviceClaim* owner;
    bool is_ending;
  };
  std::map<int, Claim> of_device;
};

Claims& AllClaims() {
  static auto* claims = new Claims();  // workers may outlive main
  return *claims;
}

}  // namespace

DeviceClaim::DeviceClaim(std::vector<int> devices) : devices_(std::move(devices)) {
  Claims& claims = AllClaims();
  std::unique_lock<std::mutex> lock(claims.mutex);
  const auto limit = std::chrono::steady_clock::now() + kEndOfWorkers;
  for (int device : devices_) {
    while (true) {
      const auto found = claims.of_device.find(device);
      if (found == claims.of_device.end()) break;
      DISTIR_REQUIRE(found->second.is_ending, RuntimeError)
          << "CUDA device " << device
          << " is used by another session of this process, whose collectives and these could wait "
             "for each other for ever; close that session first, or let this one have processes: "
             "Session(workers=\"processes\")";
      DISTIR_REQUIRE(claims.changed.wait_until(lock, limit) != std::cv_status::timeout,
                     RuntimeError)
          << "CUDA device " << device
          << " is still used by a session that has failed: one of its workers has not ended what "
             "it runs; start Python again, or let this session have processes: "
             "Session(workers=\"processes\")";
    }
  }
  for (int device : devices_) claims.of_device[device] = {this, false};
}

void DeviceClaim::Ending() noexcept {
  Claims& claims = AllClaims();
  const std::lock_guard<std::mutex> lock(claims.mutex);
  for (int device : devices_) {
    const auto found = claims.of_device.find(device);
    if (found != claims.of_device.end() && found->second.owner == this)
      found->second.is_ending = true;
  }
}

void DeviceClaim::Release() noexcept {
  Claims& claims = AllClaims();
  const std::lock_guard<std::mutex> lock(claims.mutex);
  for (int device : devices_) {
    const auto found = claims.of_device.find(device);
    if (found != claims.of_device.end() && found->second.owner == this)
      claims.of_device.erase(found);
  }
  claims.changed.notify_all();
}

}  // namespace distir::runtime::nccl
