#include "runtime/nccl/nccl_backend.h"

#include <tvm/ffi/function.h>

#include <cstdlib>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>

#include "runtime/format_list.h"
#include "runtime/nccl/device_memory.h"
#include "runtime/nccl/library.h"
#include "runtime/nccl/nccl_communicator.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

constexpr const char* kDevicesVariable = "DISTIR_EXT_CUDA_DEVICES";
constexpr const char* kTimeoutVariable = "DISTIR_EXT_NCCL_TIMEOUT";
constexpr std::chrono::seconds kDefaultTimeout{600};

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

std::vector<int> ChooseDevices(int num_workers) {
  int count = 0;
  // Without a driver the call fails; then there are none.
  if (Cuda().cudaGetDeviceCount(&count) != kCudaSuccess) count = 0;
  std::vector<int> devices(num_workers);
  if (const char* listed = std::getenv(kDevicesVariable)) {
    devices = ReadDevices(listed);
    DISTIR_REQUIRE(devices.size() >= static_cast<size_t>(num_workers), ValueError)
        << kDevicesVariable << " lists " << devices.size() << " devices, the session has "
        << num_workers << " workers";
    devices.resize(num_workers);
  } else {
    std::iota(devices.begin(), devices.end(), 0);
  }
  for (int rank = 0; rank < num_workers; ++rank) {
    DISTIR_REQUIRE(devices[rank] < count, RuntimeError)
        << "the worker of rank " << rank << " needs CUDA device " << devices[rank]
        << ", this machine has " << count;
  }
  DISTIR_REQUIRE(tvm::ffi::Function::GetGlobal("device_api.cuda").has_value(), RuntimeError)
      << "TVM's CUDA runtime is not loaded (libtvm_runtime_cuda needs libcudart.so.13 and the "
         "driver's libcuda.so.1)";
  return devices;
}

std::chrono::milliseconds ReadTimeout() {
  const char* text = std::getenv(kTimeoutVariable);
  if (text == nullptr) return kDefaultTimeout;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  DISTIR_REQUIRE(end != text && *end == '\0' && seconds >= 0 && seconds <= 1e9, ValueError)
      << kTimeoutVariable << " is \"" << text << "\"; it must be a number of seconds";
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::shared_ptr<Backend> MakeNcclBackend(std::vector<int> device_ids) {
  Nccl();  // if it can not be loaded, the session does not begin
  const std::chrono::milliseconds timeout = ReadTimeout();
  std::vector<int> devices = ChooseDevices(static_cast<int>(device_ids.size()));
  return std::make_shared<NcclBackend>(std::move(device_ids), std::move(devices),
                                       std::make_unique<ThreadExchange>(timeout), timeout);
}

[[maybe_unused]] const bool kRegistered = RegisterBackend("nccl", MakeNcclBackend);

}  // namespace

NcclBackend::NcclBackend(std::vector<int> device_ids, std::vector<int> cuda_devices,
                         std::unique_ptr<UniqueIdExchange> exchange,
                         std::chrono::milliseconds timeout)
    : device_ids_(std::move(device_ids)),
      cuda_devices_(std::move(cuda_devices)),
      exchange_(std::move(exchange)),
      timeout_(timeout) {}

std::unique_ptr<Communicator> NcclBackend::Connect(int rank) {
  CheckCuda(Cuda().cudaSetDevice(cuda_devices_[rank]), "cudaSetDevice");
  KeepFreedBuffers(cuda_devices_[rank]);
  return std::make_unique<NcclCommunicator>(shared_from_this(), rank);
}

std::shared_ptr<Connection> NcclBackend::Open(const std::vector<int>& ranks, int position) {
  const UniqueId id = exchange_->Meet(ranks, position);
  std::vector<int> devices;
  for (int rank : ranks) devices.push_back(device_ids_[rank]);
  auto connection = std::make_shared<Connection>(static_cast<int>(ranks.size()), id, position,
                                                 "devices " + FormatList(devices));
  std::lock_guard<std::mutex> lock(mutex_);
  connections_.push_back(connection);
  if (aborted_) connection->Abort();
  return connection;
}

void NcclBackend::Abort() noexcept {
  exchange_->Abort();
  std::vector<std::weak_ptr<Connection>> connections;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    connections.swap(connections_);
  }
  for (const std::weak_ptr<Connection>& each : connections)
    if (std::shared_ptr<Connection> connection = each.lock()) connection->Abort();
}

}  // namespace distir::runtime::nccl
