/*!
 * \file tests/gpu/cuda_on_host.cc
 * \brief What distir_ext uses of CUDA's runtime and of TVM's CUDA device, on host memory.
 *
 * Every device has one stream, a thread that runs what is enqueued in order, so that results are
 * there only after the stream has been waited for, as on a GPU. NCCL is in nccl_on_host.cc.
 *
 * Environment: CUDA_ON_HOST_DEVICES, how many devices there are (8); CUDA_ON_HOST_FAULT and
 * CUDA_ON_HOST_BLOCKING, what is set from the start. Besides, tests call
 *  - cuda_on_host_fault(text): "wrong reduction" (results are one too large), "async error" (the
 *    next operations fail on the device), "stall" (they never end), "no connection" (rank 1 of a
 * new communicator fails, the others wait for it), "" (none);
 *  - cuda_on_host_blocking(on): an operation has ended when the call that enqueues it returns,
 *    which kernels on the host need, since they do not wait for streams.
 */
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "on_host.h"
#include "runtime/communicators/nccl/abi.h"

namespace {

using namespace distir::runtime::nccl;
using on_host::StreamOf;

constexpr int kCudaErrorInvalidValue = 1;
constexpr int kCudaErrorInvalidPitch = 12;
constexpr int kCudaErrorInvalidDevice = 101;

int NumDevices() {
  static const int count = std::stoi(on_host::Environment("CUDA_ON_HOST_DEVICES", "8"));
  return count;
}

std::mutex fault_mutex;
std::string fault = on_host::Environment("CUDA_ON_HOST_FAULT", "");

std::atomic<bool> blocking{on_host::Environment("CUDA_ON_HOST_BLOCKING", "0") == "1"};

thread_local int current_device = 0;

void Enqueue(std::function<void()> work) { StreamOf(current_device).Enqueue(std::move(work)); }

}  // namespace

namespace on_host {

std::string Environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

bool Faulty(const char* kind) {
  std::lock_guard<std::mutex> lock(fault_mutex);
  return fault == kind;
}

void DeviceStream::Enqueue(std::function<void()> work) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!running_) {
    running_ = true;
    std::thread([this] { Run(); }).detach();
  }
  queue_.push_back(std::move(work));
  ++num_pending_;
  changed_.notify_all();
  if (blocking) changed_.wait(lock, [this] { return num_pending_ == 0; });
}

bool DeviceStream::Idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_pending_ == 0;
}

void DeviceStream::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return num_pending_ == 0; });
}

void DeviceStream::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !queue_.empty(); });
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    --num_pending_;
    changed_.notify_all();
  }
}

DeviceStream& StreamOf(int device) {
  static auto* streams = new std::vector<DeviceStream>(64);  // its threads outlive main
  return (*streams)[device];
}

int CurrentDevice() { return current_device; }

}  // namespace on_host

namespace {

class HostCudaDevice : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(tvm::Device device) final { current_device = device.device_id; }
  void GetAttr(tvm::Device device, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* rv) final {
    *rv = kind == tvm::runtime::kExist && device.device_id < NumDevices() ? 1 : 0;
  }
  void* AllocDataSpace(tvm::Device, size_t bytes, size_t, DLDataType) final {
    const size_t size = (bytes + 255) / 256 * 256 + 256;
    void* data = std::aligned_alloc(256, size);
    std::memset(data, 0xA5, size);  // what nobody writes shows
    return data;
  }
  void FreeDataSpace(tvm::Device device, void* data) final {
    StreamOf(device.device_id).Wait();
    std::free(data);
  }
  void StreamSync(tvm::Device device, TVMStreamHandle) final { StreamOf(device.device_id).Wait(); }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                      size_t bytes, tvm::Device source, tvm::Device target, DLDataType,
                      TVMStreamHandle) final {
    StreamOf(source.device_type == kDLCUDA ? source.device_id : target.device_id).Wait();
    std::memcpy(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset,
                bytes);
  }
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("device_api.cuda", [] {
    static auto* device = new HostCudaDevice();
    return static_cast<void*>(device);
  });
}

}  // namespace

EXPORT void cuda_on_host_fault(const char* kind) {
  std::lock_guard<std::mutex> lock(fault_mutex);
  fault = kind;
}

EXPORT void cuda_on_host_blocking(int on) { blocking = on != 0; }

EXPORT const char* cudaGetErrorString(int) { return "an error of CUDA on the host"; }

EXPORT int cudaGetDeviceCount(int* count) {
  *count = NumDevices();
  return kCudaSuccess;
}

EXPORT int cudaSetDevice(int device) {
  if (device < 0 || device >= NumDevices()) return kCudaErrorInvalidDevice;
  current_device = device;
  return kCudaSuccess;
}

EXPORT int cudaStreamQuery(Stream) {
  return StreamOf(current_device).Idle() ? kCudaSuccess : kCudaErrorNotReady;
}

EXPORT int cudaMallocAsync(void** data, size_t bytes, Stream) {
  *data = std::malloc(bytes);
  std::memset(*data, 0xA5, bytes);
  return kCudaSuccess;
}

EXPORT int cudaFreeAsync(void* data, Stream) {
  Enqueue([data] { std::free(data); });
  return kCudaSuccess;
}

EXPORT int cudaDeviceGetDefaultMemPool(void** pool, int) {
  *pool = nullptr;
  return kCudaSuccess;
}

EXPORT int cudaMemPoolSetAttribute(void*, int, void*) { return kCudaSuccess; }

EXPORT int cudaMemcpyAsync(void* target, const void* source, size_t bytes, int kind, Stream) {
  if (kind == kCudaMemcpyHostToDevice) {
    const auto* begin = static_cast<const char*>(source);
    Enqueue([target, read = std::vector<char>(begin, begin + bytes)] {
      std::memcpy(target, read.data(), read.size());
    });
    return kCudaSuccess;
  }
  Enqueue([=] { std::memcpy(target, source, bytes); });
  return kCudaSuccess;
}

EXPORT int cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                             size_t source_pitch, size_t width, size_t height, int kind, Stream) {
  if (target_pitch < width || source_pitch < width) return kCudaErrorInvalidPitch;
  if (kind != kCudaMemcpyDeviceToDevice) return kCudaErrorInvalidValue;
  Enqueue([=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(target) + row * target_pitch,
                  static_cast<const char*>(source) + row * source_pitch, width);
    }
  });
  return kCudaSuccess;
}
