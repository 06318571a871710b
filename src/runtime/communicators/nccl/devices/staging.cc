// Copies arguments to the GPU through a ring of pinned memory.
#include "runtime/communicators/nccl/devices/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/communicators/nccl/library.h"

namespace distir::runtime::nccl {

namespace {

constexpr int64_t kRingBytes = 8 << 20;
// Two parts of a large copy are under way while the next one is filled.
constexpr int64_t kLargestPart = 2 << 20;
constexpr int64_t kAlignment = 256;

}  // namespace

Staging::Staging(std::function<void(int64_t)> wait) : wait_(std::move(wait)) {}

Staging::~Staging() {
  if (ring_ == nullptr) return;
  for (const Part& part : pending_) free_events_.push_back(part.event);
  for (Event event : free_events_) Cuda().cudaEventDestroy(event);
  Cuda().cudaFreeHost(ring_);
}

Event Staging::NewEvent() {
  if (!free_events_.empty()) {
    Event event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  Event event = nullptr;
  CheckCuda(Cuda().cudaEventCreateWithFlags(&event, kCudaEventDisableTiming),
            "cudaEventCreateWithFlags");
  return event;
}

int64_t Staging::Reserve(int64_t bytes) {
  for (int64_t looks = 0;; ++looks) {
    while (!pending_.empty()) {
      const int result = Cuda().cudaEventQuery(pending_.front().event);
      if (result == kCudaErrorNotReady) break;
      CheckCuda(result, "copying arguments to the device");
      tail_ = pending_.front().end;
      free_events_.push_back(pending_.front().event);
      pending_.pop_front();
    }
    if (pending_.empty()) head_ = tail_ = 0;
    // Free are, if the parts lie in one piece, what is behind them and what is before them;
    // otherwise what is between.
    const bool in_one_piece = pending_.empty() || head_ > tail_;
    if (in_one_piece && head_ + bytes <= kRingBytes) return head_;
    if (in_one_piece && bytes < tail_) return 0;
    if (!in_one_piece && head_ + bytes < tail_) return head_;
    wait_(looks);
  }
}

void Staging::Copy(const void* source, void* target, int64_t bytes, Stream stream) {
  if (ring_ == nullptr && bytes > 0) {
    void* ring = nullptr;
    CheckCuda(Cuda().cudaHostAlloc(&ring, kRingBytes, kCudaHostAllocDefault), "cudaHostAlloc");
    ring_ = static_cast<char*>(ring);
  }
  for (int64_t done = 0; done < bytes;) {
    const int64_t part = std::min(bytes - done, kLargestPart);
    const int64_t begin = Reserve((part + kAlignment - 1) / kAlignment * kAlignment);
    std::memcpy(ring_ + begin, static_cast<const char*>(source) + done, static_cast<size_t>(part));
    CheckCuda(Cuda().cudaMemcpyAsync(static_cast<char*>(target) + done, ring_ + begin,
                                     static_cast<size_t>(part), kCudaMemcpyHostToDevice, stream),
              "copying arguments to the device");
    Event event = NewEvent();
    CheckCuda(Cuda().cudaEventRecord(event, stream), "cudaEventRecord");
    head_ = begin + (part + kAlignment - 1) / kAlignment * kAlignment;
    pending_.push_back({head_, event});
    done += part;
  }
}

}  // namespace distir::runtime::nccl
