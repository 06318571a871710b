// Chooses the CUDA device of each worker of a host.
#include "runtime/communicators/nccl/devices/cuda_devices.h"

#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
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
#include "support/functions.h"

namespace distir::runtime::nccl {

namespace {

constexpr const char* kDevicesVariable = "DISTIR_EXT_CUDA_DEVICES";
constexpr const char* kHostVariable = "NCCL_HOSTID";

std::vector<int> ReadDevices(const char* text) {
  std::vector<int> devices;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    constexpr size_t kMostDigits = 6;
    DISTIR_REQUIRE(!item.empty() && item.size() <= kMostDigits &&
                       item.find_first_not_of("0123456789") == std::string::npos,
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

int CountCudaDevices() {
  int driver = 0, runtime = 0;
  CheckCuda(Cuda().cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  // Without a driver this is 0.
  if (Cuda().cudaDriverGetVersion(&driver) != kCudaSuccess) driver = 0;
  int count = 0;
  const int result = Cuda().cudaGetDeviceCount(&count);
  const std::string needs = "CUDA " + CudaVersionText(runtime) + " of " + CudaLibraryFile() +
                            " needs one for CUDA " + std::to_string(runtime / 1000) + " or later";
  DISTIR_REQUIRE(driver != 0 || result != kCudaErrorInsufficientDriver, RuntimeError)
      << "this machine has no NVIDIA driver; " << needs;
  const bool is_too_old = driver != 0 && driver / 1000 < runtime / 1000;
  DISTIR_REQUIRE(!is_too_old && result != kCudaErrorInsufficientDriver, RuntimeError)
      << "the NVIDIA driver is too old: it is for CUDA " << CudaVersionText(driver) << ", and "
      << needs << "; nvidia-smi shows the driver's version";
  if (result == kCudaErrorNoDevice) return 0;
  CheckCuda(result, "counting the GPUs of this machine, by cudaGetDeviceCount of " +
                        CudaLibraryFile() + ",");
  return count;
}

std::vector<int> ChooseCudaDevices(const WorkerSet& workers) {
  const int count = CountCudaDevices();
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
        << ", this machine has " << count << " (found " << count << ", wanted "
        << *std::max_element(devices.begin(), devices.end()) + 1
        << "); nvidia-smi and CUDA_VISIBLE_DEVICES say which there are, " << kDevicesVariable
        << " which ones workers have";
  }
  DISTIR_REQUIRE(tvm::ffi::Function::GetGlobal("device_api.cuda").has_value(), RuntimeError)
      << "TVM's CUDA runtime is not loaded (libtvm_runtime_cuda needs libcudart.so.13 and the "
         "driver's libcuda.so.1)";
  if (std::set<int>(devices.begin(), devices.end()).size() < num_workers) {
    DISTIR_REQUIRE(!are_threads, ValueError)
        << kDevicesVariable << " is \"" << std::getenv(kDevicesVariable)
        << "\"; workers can have one device together only if they are processes: "
           "Session(workers=\"processes\"), or, with ccl=\"mpi\", in a copy of the script each";
    setenv(kHostVariable, HostOfItsOwn(workers.own_rank).c_str(), 0);
  }
  return devices;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  support::Functions()
      .def("distir.runtime.num_gpus", CountCudaDevices)
      .def("distir.runtime.cuda_library", []() { return tvm::ffi::String(CudaLibraryFile()); })
      .def("distir.runtime.describe_nccl", []() { return tvm::ffi::String(DescribeNccl()); })
      .def("distir.runtime.describe_cuda", []() {
        int driver = 0, runtime = 0;
        Cuda().cudaDriverGetVersion(&driver);
        Cuda().cudaRuntimeGetVersion(&runtime);
        return tvm::ffi::String("runtime " + CudaVersionText(runtime) + " of " + CudaLibraryFile() +
                                ", driver for CUDA " + CudaVersionText(driver));
      });
}

}  // namespace distir::runtime::nccl
