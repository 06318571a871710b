#include "state_on_host.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "runtime/communicators/nccl/abi.h"

namespace on_host {

using distir::runtime::nccl::kCudaSuccess;

namespace {

int64_t MostPeers() {
  static const int64_t most = std::stoll(Environment("CUDA_ON_HOST_PEERS", "8"));
  return most;
}

}  // namespace

int NumDevices() {
  static const int count = std::stoi(Environment("CUDA_ON_HOST_DEVICES", "8"));
  return count;
}

State& Everything() {
  static auto* state = new State();
  return *state;
}

std::atomic<bool> blocking{Environment("CUDA_ON_HOST_BLOCKING", "0") == "1"};

thread_local int current_device = 0;

Queue* LegacyQueue(int device) {
  auto& queues = Everything().queues[device];
  if (queues.empty()) queues.push_back(std::make_unique<Queue>(device, true, true));
  return queues.front().get();
}

int64_t Limit() {
  static const int64_t limit =
      std::stoll(Environment("CUDA_ON_HOST_MEMORY", std::to_string(int64_t{1} << 40).c_str()));
  return limit;
}

std::string Environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

bool Faulty(const char* kind) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  return Everything().fault == kind;
}

void Misused(const std::string& what) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  Everything().misuse += what + "\n";
  const std::string folder = Environment("CUDA_ON_HOST_FOLDER", "");
  if (!folder.empty()) std::ofstream(folder + "/misuse", std::ios::app) << what << "\n";
}

void Count(const char* what) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  ++Everything().counts[what];
}

Queue::Queue(int device, bool is_legacy, bool blocks_legacy)
    : device(device), is_legacy(is_legacy), blocks_legacy(blocks_legacy) {}

int64_t Queue::Enqueue(std::function<void()> work) {
  State& all = Everything();
  std::unique_lock<std::mutex> lock(all.mutex);
  if (!running_) {
    running_ = true;
    std::thread([this] { Run(); }).detach();
  }
  if (capture != Capture::kNone) {
    captured.push_back(std::move(work));
    return num_enqueued_;
  }
  Item item{std::move(work), {}};
  if (is_legacy) {
    ++all.counts["legacy stream"];
    for (const auto& other : all.queues[device])
      if (other.get() != this && other->blocks_legacy)
        item.after.emplace_back(other.get(), other->num_enqueued_);
  } else if (blocks_legacy) {
    Queue* legacy = LegacyQueue(device);
    item.after.emplace_back(legacy, legacy->num_enqueued_);
  }
  items_.push_back(std::move(item));
  const int64_t number = ++num_enqueued_;
  all.changed.notify_all();
  if (blocking) all.changed.wait(lock, [&] { return num_done_ >= number; });
  return number;
}

bool Queue::Idle() {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  return num_done_ == num_enqueued_;
}

void Queue::Wait(int64_t number) {
  std::unique_lock<std::mutex> lock(Everything().mutex);
  Everything().changed.wait(lock, [&] { return num_done_ >= number; });
}

void Queue::WaitForAll() {
  std::unique_lock<std::mutex> lock(Everything().mutex);
  const int64_t number = num_enqueued_;
  Everything().changed.wait(lock, [&] { return num_done_ >= number; });
}

void Queue::Run() {
  State& all = Everything();
  std::unique_lock<std::mutex> lock(all.mutex);
  while (true) {
    all.changed.wait(lock, [&] {
      if (items_.empty()) return false;
      for (const auto& [other, number] : items_.front().after)
        if (other->num_done_ < number) return false;
      return true;
    });
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    item.work();
    item.work = nullptr;
    lock.lock();
    ++num_done_;
    all.changed.notify_all();
  }
}

Queue* FindQueue(void* stream) {
  State& all = Everything();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (stream == nullptr) return LegacyQueue(current_device);
  for (const auto& queue : all.queues[current_device])
    if (queue.get() == stream && !queue->destroyed) return queue.get();
  return nullptr;
}

int CaptureError(Queue* queue, bool waits) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  int error = kCudaSuccess;
  if (queue->is_legacy) {
    for (const auto& other : Everything().queues[queue->device]) {
      if (other->capture == Capture::kNone || !other->blocks_legacy) continue;
      other->capture = Capture::kInvalidated;
      error = kErrorStreamCaptureImplicit;
    }
  } else if (waits && queue->capture != Capture::kNone) {
    queue->capture = Capture::kInvalidated;
    error = kErrorStreamCaptureUnsupported;
  }
  return error;
}

int CaptureErrorOfAllocation() {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  int error = kCudaSuccess;
  for (const auto& queues : Everything().queues) {
    for (const auto& queue : queues) {
      if (queue->capture == Capture::kNone) continue;
      queue->capture = Capture::kInvalidated;
      error = kErrorStreamCaptureUnsupported;
    }
  }
  return error;
}

int EnqueueOn(void* stream, std::vector<std::pair<const void*, size_t>> touched,
              std::function<void()> work) {
  if (const int error = StickyError(current_device)) return error;
  Queue* queue = FindQueue(stream);
  if (queue == nullptr) return kErrorInvalidHandle;
  if (const int error = CaptureError(queue, false)) return error;
  queue->Enqueue([device = queue->device, touched = std::move(touched), work = std::move(work)] {
    if (StickyError(device) != 0) return;
    for (const auto& [data, bytes] : touched)
      if (!IsOn(device, data, bytes)) return Break(device);
    work();
  });
  return kCudaSuccess;
}

int CurrentDevice() { return current_device; }

int StickyError(int device) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  return Everything().sticky[device];
}

void Break(int device) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  Everything().sticky[device] = kErrorIllegalAddress;
}

bool Reserve(int device, int64_t bytes) {
  std::lock_guard<std::mutex> lock(Everything().mutex);
  if (Everything().used[device] + bytes > Limit()) return false;
  Everything().used[device] += bytes;
  return true;
}

void* Allocate(int device, size_t bytes) {
  const size_t size = (bytes + 255) / 256 * 256 + 256;
  if (!Reserve(device, static_cast<int64_t>(size))) return nullptr;
  void* data = std::aligned_alloc(256, size);
  std::memset(data, 0xA5, size);  // what nobody writes shows
  std::lock_guard<std::mutex> lock(Everything().mutex);
  Everything().memory[static_cast<char*>(data)] = {device, size};
  return data;
}

void Free(void* data) {
  {
    std::lock_guard<std::mutex> lock(Everything().mutex);
    const auto found = Everything().memory.find(static_cast<char*>(data));
    if (found == Everything().memory.end()) return;
    const auto [device, size] = found->second;
    Everything().used[device] -= static_cast<int64_t>(size);
    Everything().memory.erase(found);
    std::memset(data, 0x5A, size);  // what is read later shows
  }
  std::free(data);
}

bool CanReach(int device, int other) { return device != other && device / 4 == other / 4; }

int EnablePeer(int device, int other) {
  if (!CanReach(device, other)) return kErrorPeerAccessUnsupported;
  std::lock_guard<std::mutex> lock(Everything().mutex);
  auto& peers = Everything().peers;
  if (peers.count({device, other}) != 0) return kErrorPeerAccessAlreadyEnabled;
  const auto count = std::count_if(peers.begin(), peers.end(),
                                   [device](const auto& pair) { return pair.first == device; });
  if (count >= MostPeers()) return kErrorTooManyPeers;
  peers.insert({device, other});
  return kCudaSuccess;
}

bool IsOn(int device, const void* data, size_t bytes) {
  if (bytes == 0) return true;
  const auto* begin = static_cast<const char*>(data);
  std::lock_guard<std::mutex> lock(Everything().mutex);
  auto found = Everything().memory.upper_bound(begin);
  if (found == Everything().memory.begin()) return false;
  --found;
  const int owner = found->second.first;
  return (owner == device || Everything().peers.count({device, owner}) != 0) &&
         begin + bytes <= found->first + found->second.second;
}

}  // namespace on_host
