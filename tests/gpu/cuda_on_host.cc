/*!
 * \file tests/gpu/cuda_on_host.cc
 * \brief What distir_ext uses of CUDA's runtime, of NCCL and of TVM's CUDA device, on host memory.
 *
 * Ranks are threads. Every device has one stream, a thread that runs what is enqueued in order, so
 * that results are there only after the stream has been waited for, as on a GPU. Collectives meet
 * in the order in which they are enqueued on their communicator; sends and receives are matched
 * per pair of ranks, and those of a group make progress together.
 *
 * Environment: CUDA_ON_HOST_DEVICES, how many devices there are (8); CUDA_ON_HOST_FAULT, a fault as
 * below. Besides, tests call
 *  - cuda_on_host_fault(text): "wrong reduction" (results are one too large), "async error" (the
 *    next operations fail on the device), "stall" (they never end), "" (none);
 *  - cuda_on_host_blocking(on): an operation has ended when the call that enqueues it returns,
 *    which kernels on the host need, since they do not wait for streams.
 */
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/half_precision.h"
#include "runtime/nccl/abi.h"

namespace {

using namespace distir::runtime;
using namespace distir::runtime::nccl;

constexpr int kInvalidArgument = 4;
constexpr int kRemoteError = 6;
constexpr int kCudaErrorInvalidValue = 1;
constexpr int kCudaErrorInvalidPitch = 12;
constexpr int kCudaErrorInvalidDevice = 101;

std::string Environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

int NumDevices() {
  static const int count = std::stoi(Environment("CUDA_ON_HOST_DEVICES", "8"));
  return count;
}

std::mutex fault_mutex;
std::string fault = Environment("CUDA_ON_HOST_FAULT", "");

std::atomic<bool> blocking{false};

bool Faulty(const char* kind) {
  std::lock_guard<std::mutex> lock(fault_mutex);
  return fault == kind;
}

/*! \brief A device's only stream. */
class DeviceStream {
 public:
  void Enqueue(std::function<void()> work) {
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
  bool Idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_pending_ == 0;
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return num_pending_ == 0; });
  }

 private:
  void Run() {
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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  int num_pending_ = 0;
  bool running_ = false;
};

DeviceStream& StreamOf(int device) {
  static auto* streams = new std::vector<DeviceStream>(64);  // its threads outlive main
  return (*streams)[device];
}

thread_local int current_device = 0;

void Enqueue(std::function<void()> work) { StreamOf(current_device).Enqueue(std::move(work)); }

// Element types -------------------------------------------------------------------------------

float Float8ToFloat(uint8_t bits, int exponent_bits) {
  const int mantissa_bits = 7 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7F) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  if (exponent_bits == 4 && (bits & 0x7F) == 0x7F) return NAN;
  if (exponent_bits == 5 && exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  const float fraction = static_cast<float>(mantissa) / static_cast<float>(1 << mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

uint8_t FloatToFloat8(float value, int exponent_bits) {
  uint8_t best = 0;
  float distance = INFINITY;
  for (int bits = 0; bits < 256; ++bits) {
    const float candidate = Float8ToFloat(static_cast<uint8_t>(bits), exponent_bits);
    const float away = std::fabs(candidate - value);
    if (away < distance || (away == distance && bits % 2 == 0 && best % 2 == 1)) {
      best = static_cast<uint8_t>(bits);
      distance = away;
    }
  }
  return best;
}

int BytesOf(int dtype) {
  switch (dtype) {
    case kNcclInt8:
    case kNcclUint8:
    case kNcclFloat8e4m3:
    case kNcclFloat8e5m2:
      return 1;
    case kNcclFloat16:
    case kNcclBfloat16:
      return 2;
    case kNcclInt32:
    case kNcclUint32:
    case kNcclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <typename T, typename Load, typename Store>
void Reduce(const std::vector<const char*>& sources, size_t begin, size_t count, int operation,
            char* out, Load load, Store store) {
  const bool wrong = Faulty("wrong reduction");
  for (size_t i = 0; i < count; ++i) {
    auto at = [&](const char* source) {
      T stored;
      std::memcpy(&stored, source + (begin + i) * sizeof(T), sizeof(T));
      return load(stored);
    };
    auto result = at(sources[0]);
    for (size_t j = 1; j < sources.size(); ++j) {
      const auto value = at(sources[j]);
      if (operation == kNcclProd) result = result * value;
      if (operation == kNcclMax) result = result > value ? result : value;
      if (operation == kNcclMin) result = result < value ? result : value;
      if (operation == kNcclSum || operation == kNcclAvg) result = result + value;
    }
    using Result = decltype(result);
    if (operation == kNcclAvg) result = result / static_cast<Result>(sources.size());
    if (wrong) result = result + static_cast<Result>(1);
    const T stored = store(result);
    std::memcpy(out + i * sizeof(T), &stored, sizeof(T));
  }
}

void Reduce(const std::vector<const char*>& sources, size_t begin, size_t count, int dtype,
            int operation, char* out) {
  auto plain = [&](auto zero) {
    using T = decltype(zero);
    Reduce<T>(sources, begin, count, operation, out, [](T v) { return v; }, [](T v) { return v; });
  };
  auto float8 = [&](int exponent_bits) {
    Reduce<uint8_t>(
        sources, begin, count, operation, out,
        [=](uint8_t v) { return Float8ToFloat(v, exponent_bits); },
        [=](float v) { return FloatToFloat8(v, exponent_bits); });
  };
  switch (dtype) {
    case kNcclInt8:  // integers wrap around, which is defined for unsigned ones
      if (operation == kNcclSum || operation == kNcclProd) return plain(uint8_t{});
      return plain(int8_t{});
    case kNcclUint8:
      return plain(uint8_t{});
    case kNcclInt32:
      if (operation == kNcclSum || operation == kNcclProd) return plain(uint32_t{});
      return plain(int32_t{});
    case kNcclUint32:
      return plain(uint32_t{});
    case kNcclInt64:
      if (operation == kNcclSum || operation == kNcclProd) return plain(uint64_t{});
      return plain(int64_t{});
    case kNcclUint64:
      return plain(uint64_t{});
    case kNcclFloat16:
      return Reduce<uint16_t>(sources, begin, count, operation, out, HalfToFloat, FloatToHalf);
    case kNcclBfloat16:
      return Reduce<uint16_t>(sources, begin, count, operation, out, BFloat16ToFloat,
                              FloatToBFloat16);
    case kNcclFloat32:
      return plain(float{});
    case kNcclFloat64:
      return plain(double{});
    case kNcclFloat8e4m3:
      return float8(4);
    case kNcclFloat8e5m2:
      return float8(5);
  }
}

// Communicators -------------------------------------------------------------------------------

/*! \brief What the ranks of a communicator share. */
struct World {
  struct Meeting {
    std::vector<const char*> sources;
    int num_arrived = 0;
    int num_finished = 0;
  };
  struct Message {
    const char* data;
    size_t bytes;
    std::atomic<bool>* taken;
  };
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int num_connected = 0;
  std::map<int64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<Message>> messages;
};

struct Communicator {
  std::shared_ptr<World> world;
  int rank;
  int device;
  int64_t num_collectives = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> error{kNcclSuccess};

  /*! \brief Waits on the shared state; whether it came about before an abort. */
  template <typename Ready>
  bool Wait(std::unique_lock<std::mutex>* lock, Ready ready) {
    while (!ready() && !aborted) world->changed.wait_for(*lock, std::chrono::milliseconds(20));
    return !aborted;
  }

  /*! \brief Whether the operation that begins is to go wrong. */
  bool Fails() {
    if (Faulty("async error")) error = kRemoteError;
    const bool fails = Faulty("async error") || Faulty("stall");
    while (fails && !aborted) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return fails;
  }
};

struct PointToPoint {
  bool is_send;
  char* data;
  size_t bytes;
  int peer;
};

thread_local int group_depth = 0;
thread_local std::map<Communicator*, std::vector<PointToPoint>> grouped;

void Collective(Communicator* comm, const char* source,
                std::function<void(const std::vector<const char*>&)> work) {
  const int64_t number = comm->num_collectives++;
  Enqueue([comm, source, number, work = std::move(work)] {
    if (comm->Fails()) return;
    World& world = *comm->world;
    std::unique_lock<std::mutex> lock(world.mutex);
    World::Meeting& meeting = world.meetings[number];
    meeting.sources.resize(world.size);
    meeting.sources[comm->rank] = source;
    ++meeting.num_arrived;
    world.changed.notify_all();
    if (!comm->Wait(&lock, [&] { return meeting.num_arrived == world.size; })) return;
    lock.unlock();
    work(meeting.sources);
    lock.lock();
    ++meeting.num_finished;
    world.changed.notify_all();
    if (!comm->Wait(&lock, [&] { return meeting.num_finished >= world.size; })) return;
    if (++meeting.num_finished == 2 * world.size) world.meetings.erase(number);
  });
}

void RunPointToPoint(Communicator* comm, const std::vector<PointToPoint>& parts) {
  if (comm->Fails()) return;
  World& world = *comm->world;
  std::deque<std::atomic<bool>> taken;
  std::unique_lock<std::mutex> lock(world.mutex);
  for (const PointToPoint& part : parts) {
    if (!part.is_send) continue;
    taken.emplace_back(false);
    world.messages[{comm->rank, part.peer}].push_back({part.data, part.bytes, &taken.back()});
  }
  world.changed.notify_all();
  for (const PointToPoint& part : parts) {
    if (part.is_send) continue;
    auto& box = world.messages[{part.peer, comm->rank}];
    if (!comm->Wait(&lock, [&] { return !box.empty(); })) return;
    if (box.front().bytes != part.bytes) {
      comm->error = kInvalidArgument;
      return;
    }
    std::memcpy(part.data, box.front().data, part.bytes);
    *box.front().taken = true;
    box.pop_front();
    world.changed.notify_all();
  }
  for (std::atomic<bool>& each : taken)
    if (!comm->Wait(&lock, [&] { return each.load(); })) return;
}

int PostPointToPoint(Communicator* comm, const PointToPoint& part) {
  if (part.peer < 0 || part.peer >= comm->world->size) return kInvalidArgument;
  if (group_depth > 0) {
    grouped[comm].push_back(part);
  } else {
    Enqueue([comm, part] { RunPointToPoint(comm, {part}); });
  }
  return kNcclSuccess;
}

// TVM's device --------------------------------------------------------------------------------

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

#define EXPORT extern "C" __attribute__((visibility("default")))

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

EXPORT const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "remote process exited or there was a network error"
                                : "invalid argument";
}

EXPORT const char* ncclGetLastError(Comm) { return ""; }

EXPORT int ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> next{0};
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "group %d", next++);
  return kNcclSuccess;
}

EXPORT int ncclCommInitRank(Comm* comm, int size, UniqueId id, int rank) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<World>> worlds;
  if (rank < 0 || rank >= size) return kInvalidArgument;
  std::shared_ptr<World> world;
  {
    std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<World>& found = worlds[id.internal];
    if (found == nullptr) found = std::make_shared<World>();
    world = found;
  }
  std::unique_lock<std::mutex> lock(world->mutex);
  if (world->size != 0 && world->size != size) return kInvalidArgument;
  world->size = size;
  ++world->num_connected;
  world->changed.notify_all();
  world->changed.wait(lock, [&] { return world->num_connected >= size; });
  // Never freed: streams may still hold operations of a communicator that was aborted.
  auto* made = new Communicator{std::move(world), rank, current_device};
  *comm = made;
  return kNcclSuccess;
}

EXPORT int ncclCommDestroy(Comm comm) {
  StreamOf(static_cast<Communicator*>(comm)->device).Wait();
  return kNcclSuccess;
}

EXPORT int ncclCommAbort(Comm comm) {
  static_cast<Communicator*>(comm)->aborted = true;
  return kNcclSuccess;
}

EXPORT int ncclCommGetAsyncError(Comm comm, int* error) {
  *error = static_cast<Communicator*>(comm)->error;
  return kNcclSuccess;
}

EXPORT int ncclAllReduce(const void* source, void* target, size_t count, int dtype, int operation,
                         Comm comm, Stream) {
  Collective(static_cast<Communicator*>(comm), static_cast<const char*>(source),
             [=](const std::vector<const char*>& sources) {
               Reduce(sources, 0, count, dtype, operation, static_cast<char*>(target));
             });
  return kNcclSuccess;
}

EXPORT int ncclAllGather(const void* source, void* target, size_t count, int dtype, Comm comm,
                         Stream) {
  const size_t bytes = count * BytesOf(dtype);
  Collective(static_cast<Communicator*>(comm), static_cast<const char*>(source),
             [=](const std::vector<const char*>& sources) {
               char* out = static_cast<char*>(target);
               for (const char* each : sources) {
                 std::memcpy(out, each, bytes);
                 out += bytes;
               }
             });
  return kNcclSuccess;
}

EXPORT int ncclReduceScatter(const void* source, void* target, size_t count, int dtype,
                             int operation, Comm comm, Stream) {
  const auto rank = static_cast<size_t>(static_cast<Communicator*>(comm)->rank);
  Collective(static_cast<Communicator*>(comm), static_cast<const char*>(source),
             [=](const std::vector<const char*>& sources) {
               Reduce(sources, rank * count, count, dtype, operation, static_cast<char*>(target));
             });
  return kNcclSuccess;
}

EXPORT int ncclSend(const void* source, size_t count, int dtype, int peer, Comm comm, Stream) {
  return PostPointToPoint(
      static_cast<Communicator*>(comm),
      {true, static_cast<char*>(const_cast<void*>(source)), count * BytesOf(dtype), peer});
}

EXPORT int ncclRecv(void* target, size_t count, int dtype, int peer, Comm comm, Stream) {
  return PostPointToPoint(static_cast<Communicator*>(comm),
                          {false, static_cast<char*>(target), count * BytesOf(dtype), peer});
}

EXPORT int ncclGroupStart() {
  ++group_depth;
  return kNcclSuccess;
}

EXPORT int ncclGroupEnd() {
  if (--group_depth > 0) return kNcclSuccess;
  for (auto& [comm, parts] : grouped) {
    Enqueue([comm = comm, parts = std::move(parts)] { RunPointToPoint(comm, parts); });
  }
  grouped.clear();
  return kNcclSuccess;
}
