#include "runtime/communicators/nccl/cuda_devices.h"

#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <set>
#include <sstream>
#include <string>

#include "runtime/communicators/nccl/library.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

constexpr const char* kDevicesVariable = "DISTIR_EXT_CUDA_DEVICES";
constexpr const char* kHostVariable = "NCCL_HOSTID";

std::vector<int> ReadDevices(const char* text) {
  std::vector<int> devices;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    DISTIR_REQUIRE(!item.empty() && item.find_first_not_of("0123456789") == std::string::npos,
                   ValueError)
        << kDevicesVariable << " is \"" << text << "\"; it must list numbers, such as 0,1,2,3";
    devices.push_back(std::stoi(item));
  }
  return devices;
}

/*! \brief A name of a host that no other worker of the session has. */
std::string HostOfItsOwn(int rank) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return std::string(name.data()) + "-" + std::to_string(rank);
}

}  // namespace

std::vector<int> ChooseCudaDevices(const WorkerSet& workers) {
  int count = 0;
  // Without a driver the call fails; then there are none.
  if (Cuda().cudaGetDeviceCount(&count) != kCudaSuccess) count = 0;
  const size_t num_workers = workers.ranks_here.size();
  const bool are_threads = workers.own_rank < 0;
  std::vector<int> devices(num_workers);
  if (const char* listed = std::getenv(kDevicesVariable)) {
    devices = ReadDevices(listed);
    DISTIR_REQUIRE(devices.size() >= num_workers, ValueError)
        << kDevicesVariable << " lists " << devices.size() << " devices, the session has "
        << num_workers << " workers" << (are_threads ? "" : " on this host");
    devices.resize(num_workers);
  } else {
    std::iota(devices.begin(), devices.end(), 0);
  }
  for (size_t i = 0; i < num_workers; ++i) {
    DISTIR_REQUIRE(devices[i] < count, RuntimeError)
        << "the worker of rank " << workers.ranks_here[i] << " needs CUDA device " << devices[i]
        << ", this machine has " << count;
  }
  DISTIR_REQUIRE(tvm::ffi::Function::GetGlobal("device_api.cuda").has_value(), RuntimeError)
      << "TVM's CUDA runtime is not loaded (libtvm_runtime_cuda needs libcudart.so.13 and the "
         "driver's libcuda.so.1)";
  if (std::set<int>(devices.begin(), devices.end()).size() < num_workers) {
    DISTIR_REQUIRE(!are_threads, ValueError)
        << kDevicesVariable << " is \"" << std::getenv(kDevicesVariable)
        << "\"; workers can have one device together only if they are processes: "
           "Session(workers=\"processes\")";
    setenv(kHostVariable, HostOfItsOwn(workers.own_rank).c_str(), 0);
  }
  return devices;
}

}  // namespace distir::runtime::nccl
