// Claims CUDA devices for one session of this process.
#include "runtime/communicators/nccl/devices/device_claim.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

// Time that a session waits for the workers of one that has failed.
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
  auto is_claimed = [&claims](int device) { return claims.of_device.count(device) != 0; };
  // All of them at once: while one is waited for, another session may take the others.
  while (true) {
    const auto claimed = std::find_if(devices_.begin(), devices_.end(), is_claimed);
    if (claimed == devices_.end()) break;
    DISTIR_REQUIRE(claims.of_device[*claimed].is_ending, RuntimeError)
        << "CUDA device " << *claimed
        << " is used by another session of this process, whose collectives and these could wait "
           "for each other for ever; close that session first";
    DISTIR_REQUIRE(claims.changed.wait_until(lock, limit) != std::cv_status::timeout, RuntimeError)
        << "CUDA device " << *claimed
        << " is still used by a session that has failed: one of its workers has not ended what "
           "it runs; start Python again";
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
