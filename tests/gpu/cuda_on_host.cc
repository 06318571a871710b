/*!
 * \file tests/gpu/cuda_on_host.cc
 * \brief What distir_ext uses of CUDA's runtime and of TVM's CUDA device, on host memory.
 *
 * Streams are threads that run what is enqueued in order, so that results are there only after the
 * stream has been waited for, as on a GPU. Copies read their source when it is their turn, also
 * from memory that is not pinned. Work runs on the current device only, and reads and writes its
 * memory only, and that of peers whose access was enabled, of which there are at most eight:
 * anything else is CUDA's error. After such an error of a kernel nothing works on the device any
 * more, and TVM's calls throw, also when they free. A stream that is captured, as
 * cudaStreamBeginCapture says, runs nothing: what is enqueued is kept for the graph, waits for it
 * and new memory of TVM's are errors that spoil the capture, and so is the null stream. NCCL is in
 * nccl_on_host.cc, cuBLASLt in cublaslt_on_host.cc.
 *
 * Environment: CUDA_ON_HOST_DEVICES, how many devices there are (8); CUDA_ON_HOST_MEMORY, how many
 * bytes each has; CUDA_ON_HOST_PEERS, how many peers one may have enabled (8);
 * CUDA_ON_HOST_DRIVER and CUDA_ON_HOST_RUNTIME, versions; CUDA_ON_HOST_FAULT and
 * CUDA_ON_HOST_BLOCKING, what is set from the start. Besides, tests call
 *  - cuda_on_host_fault(text): "wrong reduction" (results are one too large), "async error" (the
 *    next operations fail on the device), "stall" (they never end), "no connection" (rank 1 of a
 *    new communicator fails, the others wait for it), "stuck connection" (ranks but 0 never
 *    connect for their first operation), "illegal address" (the next operation breaks its device),
 *    "refused revocation" (NCCL ends no communicator so), "unusable driver" (CUDA finds no GPU),
 *    "no copy to the device" (from the host, which does nothing), "wrong product" (cuBLASLt's are
 *    one too large), "refused product" (cuBLASLt has no algorithm), "" (none; broken devices are
 *    whole again);
 *  - cuda_on_host_blocking(on): an operation has ended when the call that enqueues it returns,
 *    which kernels on the host need, since they do not wait for streams;
 *  - cuda_on_host_count(what), since the last call for the same: "legacy stream", "pageable copy",
 *    "allocation" and "free" (of TVM, each of which waits for the device), "abort", "revoke",
 *    "destroy" (of communicators);
 *  - cuda_on_host_misuse(): what would have crashed or hung, as text; empty if nothing.
 * What processes misuse is in the file "misuse" of CUDA_ON_HOST_FOLDER as well.
 */
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "runtime/communicators/nccl/abi.h"
#include "state_on_host.h"

namespace {

using namespace distir::runtime::nccl;
using namespace on_host;

constexpr int kErrorInvalidValue = 1;
constexpr int kErrorInvalidPitch = 12;

bool IsPinned(const void* data, size_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  std::lock_guard<std::mutex> lock(Everything().mutex);
  auto found = Everything().pinned.upper_bound(begin);
  if (found == Everything().pinned.begin()) return false;
  --found;
  return begin + bytes <= found->first + found->second;
}

class HostCudaDevice : public tvm::runtime::DeviceAPI {
 public:
  void SetDevice(tvm::Device device) final { current_device = device.device_id; }
  void GetAttr(tvm::Device device, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* rv) final {
    *rv = kind == tvm::runtime::kExist && device.device_id < NumDevices() ? 1 : 0;
  }
  void* AllocDataSpace(tvm::Device device, size_t bytes, size_t, DLDataType) final {
    current_device = device.device_id;
    Check(StickyError(device.device_id));
    Check(CaptureErrorOfAllocation());
    Count("allocation");
    void* data = Allocate(device.device_id, bytes);
    Check(data == nullptr ? kErrorMemoryAllocation : kCudaSuccess);
    return data;
  }
  void FreeDataSpace(tvm::Device device, void* data) final {
    current_device = device.device_id;
    Check(StickyError(device.device_id));
    Count("free");
    WaitForDevice(device.device_id);
    Free(data);
  }
  void StreamSync(tvm::Device device, TVMStreamHandle stream) final {
    current_device = device.device_id;
    Queue* queue = FindQueue(stream);
    if (queue != nullptr) {
      Check(CaptureError(queue, true));
      queue->WaitForAll();
    }
    if (stream == nullptr) WaitForDevice(device.device_id);
    Check(StickyError(device.device_id));
  }

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                      size_t bytes, tvm::Device source, tvm::Device target, DLDataType,
                      TVMStreamHandle stream) final {
    current_device = source.device_type == kDLCUDA ? source.device_id : target.device_id;
    Check(StickyError(current_device));
    Queue* queue = FindQueue(stream);
    Check(queue == nullptr ? kErrorInvalidHandle : CaptureError(queue, true));
    queue->Wait(queue->Enqueue([=] {
      std::memcpy(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset,
                  bytes);
    }));
  }

 private:
  static void WaitForDevice(int device) {
    std::vector<Queue*> queues;
    {
      std::lock_guard<std::mutex> lock(Everything().mutex);
      for (const auto& queue : Everything().queues[device]) queues.push_back(queue.get());
    }
    for (Queue* queue : queues) queue->WaitForAll();
  }
  static void Check(int error) {
    if (error == kCudaSuccess) return;
    TVM_FFI_THROW(InternalError) << "CUDA: an error of CUDA on the host, number " << error;
  }
};

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("device_api.cuda", [] {
    static auto* device = new HostCudaDevice();
    return static_cast<void*>(device);
  });
}

struct Recording {
  std::atomic<int64_t> recorded{0};
  std::atomic<int64_t> done{0};
};

}  // namespace

EXPORT void cuda_on_host_fault(const char* kind) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  Everything().fault = kind;
  if (*kind == '\0') std::fill(std::begin(Everything().sticky), std::end(Everything().sticky), 0);
}

EXPORT void cuda_on_host_blocking(int on) { blocking = on != 0; }

EXPORT int cuda_on_host_count(const char* what) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  return std::exchange(Everything().counts[what], 0);
}

EXPORT const char* cuda_on_host_misuse() {
  static std::string text;
  std::lock_guard<std::mutex> lock(Everything().mutex);
  text = std::exchange(Everything().misuse, "");
  return text.c_str();
}

EXPORT const char* cudaGetErrorString(int error) {
  switch (error) {
    case kErrorMemoryAllocation:
      return "out of memory";
    case kErrorSystemDriverMismatch:
      return "system has unsupported display driver / cuda driver combination";
    case kErrorInvalidHandle:
      return "invalid resource handle";
    case kErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "an error of CUDA on the host";
  }
}

EXPORT int cudaRuntimeGetVersion(int* version) {
  *version = std::stoi(Environment("CUDA_ON_HOST_RUNTIME", "13000"));
  return kCudaSuccess;
}

EXPORT int cudaDriverGetVersion(int* version) {
  *version = std::stoi(Environment("CUDA_ON_HOST_DRIVER", "13000"));
  return kCudaSuccess;
}

EXPORT int cudaGetDeviceCount(int* count) {
  *count = NumDevices();
  if (std::stoi(Environment("CUDA_ON_HOST_DRIVER", "13000")) / 1000 <
      std::stoi(Environment("CUDA_ON_HOST_RUNTIME", "13000")) / 1000)
    return kCudaErrorInsufficientDriver;
  if (Faulty("unusable driver")) return kErrorSystemDriverMismatch;
  return *count == 0 ? kCudaErrorNoDevice : kCudaSuccess;
}

EXPORT int cudaSetDevice(int device) {
  if (device < 0 || device >= NumDevices()) return kErrorInvalidDevice;
  current_device = device;
  return kCudaSuccess;
}

EXPORT int cudaGetDevice(int* device) {
  *device = current_device;
  return kCudaSuccess;
}

// Four GPUs each can reach each other's memory.
EXPORT int cudaDeviceCanAccessPeer(int* reaches, int device, int other) {
  *reaches = CanReach(device, other) ? 1 : 0;
  return kCudaSuccess;
}

EXPORT int cudaDeviceEnablePeerAccess(int other, unsigned int flags) {
  return flags != 0 ? kErrorInvalidValue : EnablePeer(current_device, other);
}

EXPORT int cudaDeviceDisablePeerAccess(int other) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  const bool was = Everything().peers.erase({current_device, other}) != 0;
  return was ? kCudaSuccess : kErrorPeerAccessNotEnabled;
}

// The name, then the UUID; that of another test is another one.
EXPORT int cudaGetDeviceProperties(void* properties, int device) {
  if (device < 0 || device >= NumDevices()) return kErrorInvalidDevice;
  auto* data = static_cast<char*>(properties);
  std::strcpy(data, "a GPU on the host");
  const auto machine = std::hash<std::string>()(Environment("CUDA_ON_HOST_FOLDER", ""));
  const auto number = static_cast<uint64_t>(device);
  std::memcpy(data + kOffsetOfUuid, &machine, sizeof(machine));
  std::memcpy(data + kOffsetOfUuid + sizeof(machine), &number, sizeof(number));
  return kCudaSuccess;
}

EXPORT int cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  *total = static_cast<size_t>(Limit());
  *free = static_cast<size_t>(Limit() - Everything().used[current_device]);
  return kCudaSuccess;
}

EXPORT int cudaStreamCreateWithFlags(Stream* stream, unsigned int flags) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  LegacyQueue(current_device);
  auto& queues = Everything().queues[current_device];
  queues.push_back(std::make_unique<Queue>(current_device, false, flags == 0));
  *stream = queues.back().get();
  return kCudaSuccess;
}

EXPORT int cudaStreamDestroy(Stream stream) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  static_cast<Queue*>(stream)->destroyed = true;
  return kCudaSuccess;
}

EXPORT int cudaStreamQuery(Stream stream) {
  if (const int error = StickyError(current_device)) return error;
  Queue* queue = FindQueue(stream);
  if (queue == nullptr) return kErrorInvalidHandle;
  if (const int error = CaptureError(queue, true)) return error;
  return queue->Idle() ? kCudaSuccess : kCudaErrorNotReady;
}

EXPORT int cudaStreamSynchronize(Stream stream) {
  Queue* queue = FindQueue(stream);
  if (queue == nullptr) return kErrorInvalidHandle;
  if (const int error = CaptureError(queue, true)) return error;
  queue->WaitForAll();
  return StickyError(current_device);
}

EXPORT int cudaStreamIsCapturing(Stream stream, int* status) {
  Queue* queue = FindQueue(stream);
  if (queue == nullptr) return kErrorInvalidHandle;
  std::lock_guard<std::mutex> lock(Everything().mutex);
  *status = static_cast<int>(queue->capture);
  return kCudaSuccess;
}

EXPORT int cudaStreamBeginCapture(Stream stream, int) {
  Queue* queue = FindQueue(stream);
  if (queue == nullptr) return kErrorInvalidHandle;
  std::lock_guard<std::mutex> lock(Everything().mutex);
  if (queue->is_legacy) return kErrorStreamCaptureUnsupported;
  queue->capture = Capture::kActive;
  queue->captured.clear();
  return kCudaSuccess;
}

using Graph = std::vector<std::function<void()>>;

EXPORT int cudaStreamEndCapture(Stream stream, void** graph) {
  *graph = nullptr;
  Queue* queue = FindQueue(stream);
  if (queue == nullptr) return kErrorInvalidHandle;
  std::lock_guard<std::mutex> lock(Everything().mutex);
  if (queue->capture == Capture::kNone) return kErrorStreamCaptureUnmatched;
  const bool is_whole = std::exchange(queue->capture, Capture::kNone) == Capture::kActive;
  if (!is_whole) return kErrorStreamCaptureInvalidated;
  *graph = new Graph(std::move(queue->captured));
  return kCudaSuccess;
}

EXPORT int cudaGraphInstantiate(void** executable, void* graph, uint64_t) {
  *executable = new Graph(*static_cast<Graph*>(graph));
  return kCudaSuccess;
}

EXPORT int cudaGraphLaunch(void* executable, Stream stream) {
  Queue* queue = FindQueue(stream);
  if (queue == nullptr) return kErrorInvalidHandle;
  for (const auto& work : *static_cast<Graph*>(executable)) queue->Enqueue(work);
  return StickyError(current_device);
}

EXPORT int cudaGraphDestroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return kCudaSuccess;
}

EXPORT int cudaGraphExecDestroy(void* executable) { return cudaGraphDestroy(executable); }

EXPORT int cudaEventCreateWithFlags(void** event, unsigned int) {
  *event = new Recording();  // never freed: a stream may still hold it
  return kCudaSuccess;
}

EXPORT int cudaEventDestroy(void*) { return kCudaSuccess; }

EXPORT int cudaEventRecord(void* event, Stream stream) {
  auto* its = static_cast<Recording*>(event);
  Queue* queue = FindQueue(stream);
  if (queue == nullptr) return kErrorInvalidHandle;
  const int64_t number = ++its->recorded;
  queue->Enqueue([its, number] { its->done = number; });
  return StickyError(current_device);
}

EXPORT int cudaEventQuery(void* event) {
  if (const int error = StickyError(current_device)) return error;
  auto* its = static_cast<Recording*>(event);
  return its->done == its->recorded ? kCudaSuccess : kCudaErrorNotReady;
}

EXPORT int cudaHostAlloc(void** data, size_t bytes, unsigned int) {
  *data = std::malloc(bytes);
  std::lock_guard<std::mutex> lock(Everything().mutex);
  Everything().pinned[static_cast<char*>(*data)] = bytes;
  return kCudaSuccess;
}

EXPORT int cudaFreeHost(void* data) {
  {
    std::lock_guard<std::mutex> lock(Everything().mutex);
    Everything().pinned.erase(static_cast<char*>(data));
  }
  std::free(data);
  return kCudaSuccess;
}

EXPORT int cudaMalloc(void** data, size_t bytes) {
  if (const int error = StickyError(current_device)) return error;
  *data = Allocate(current_device, bytes);
  return *data == nullptr ? kErrorMemoryAllocation : kCudaSuccess;
}

EXPORT int cudaFree(void* data) {
  Free(data);
  return kCudaSuccess;
}

EXPORT int cudaMallocAsync(void** data, size_t bytes, Stream stream) {
  if (const int error = StickyError(current_device)) return error;
  if (FindQueue(stream) == nullptr) return kErrorInvalidHandle;
  *data = Allocate(current_device, bytes);
  return *data == nullptr ? kErrorMemoryAllocation : kCudaSuccess;
}

EXPORT int cudaFreeAsync(void* data, Stream stream) {
  if (const int error = StickyError(current_device)) return error;
  auto* queue = static_cast<Queue*>(stream == nullptr ? FindQueue(nullptr) : stream);
  if (queue->destroyed) {
    Misused("memory is freed on a stream that was destroyed");
    return kErrorInvalidHandle;
  }
  queue->Enqueue([data] { Free(data); });
  return kCudaSuccess;
}

EXPORT int cudaDeviceGetDefaultMemPool(void** pool, int) {
  *pool = nullptr;
  return kCudaSuccess;
}

EXPORT int cudaMemPoolSetAttribute(void*, int, void*) { return kCudaSuccess; }

EXPORT int cudaMemcpyAsync(void* target, const void* source, size_t bytes, int kind,
                           Stream stream) {
  std::vector<std::pair<const void*, size_t>> touched;
  if (kind != kCudaMemcpyDeviceToHost) touched.emplace_back(target, bytes);
  if (kind != kCudaMemcpyHostToDevice) touched.emplace_back(source, bytes);
  if (kind == kCudaMemcpyHostToDevice && Faulty("no copy to the device")) return kCudaSuccess;
  const void* host = kind == kCudaMemcpyHostToDevice ? source : target;
  if (kind != kCudaMemcpyDeviceToDevice && !IsPinned(host, bytes)) Count("pageable copy");
  return EnqueueOn(stream, std::move(touched), [=] { std::memcpy(target, source, bytes); });
}

EXPORT int cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                             size_t source_pitch, size_t width, size_t height, int kind,
                             Stream stream) {
  if (target_pitch < width || source_pitch < width) return kErrorInvalidPitch;
  if (kind != kCudaMemcpyDeviceToDevice) return kErrorInvalidValue;
  return EnqueueOn(stream,
                   {{target, (height - 1) * target_pitch + width},
                    {source, (height - 1) * source_pitch + width}},
                   [=] {
                     for (size_t row = 0; row < height; ++row) {
                       std::memcpy(static_cast<char*>(target) + row * target_pitch,
                                   static_cast<const char*>(source) + row * source_pitch, width);
                     }
                   });
}

EXPORT int cudaMemsetAsync(void* target, int value, size_t bytes, Stream stream) {
  return EnqueueOn(stream, {{target, bytes}}, [=] { std::memset(target, value, bytes); });
}
