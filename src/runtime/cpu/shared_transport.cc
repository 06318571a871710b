#include "runtime/cpu/shared_transport.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "runtime/cpu/futex.h"
#include "runtime/cpu/waiting_policy.h"

namespace distir::runtime::cpu {

namespace {

[[noreturn]] void ThrowStopped(const std::string& what) {
  TVM_FFI_THROW(RuntimeError) << what << " stopped because another worker failed";
  TVM_FFI_UNREACHABLE();
}

}  // namespace

SharedTransport::SharedTransport(std::shared_ptr<SharedMemory> memory, int rank,
                                 std::vector<int> device_ids)
    : memory_(std::move(memory)),
      rank_(rank),
      device_ids_(std::move(device_ids)),
      me_(memory_->status(rank)),
      outbox_(memory_->arena(rank), memory_->arena_bytes()),
      arrived_(device_ids_.size()) {}

void SharedTransport::StepBegins(int64_t step) noexcept {
  me_.step.store(step, std::memory_order_seq_cst);
}

void SharedTransport::StepEnds(int64_t step) noexcept {
  outbox_.Trim();
  me_.finished_step.store(step, std::memory_order_seq_cst);
}

char* SharedTransport::Reserve(const MessageHeader& header) {
  reserved_ = outbox_.Allocate(header.num_bytes);
  reserved_->header = header;
  return reserved_->bytes();
}

void SharedTransport::Post(const std::vector<int>& ranks, const Describe& describe) {
  if (memory_->aborted()) ThrowStopped(describe());
  Block* block = std::exchange(reserved_, nullptr);
  block->num_readers.store(static_cast<uint32_t>(ranks.size()), std::memory_order_relaxed);
  outbox_.Sent(block);
  const uint64_t place =
      static_cast<uint64_t>(reinterpret_cast<char*>(block) - memory_->arena(rank_));
  for (int target : ranks) {
    Ring& ring = memory_->ring(rank_, target);
    if (ring.full()) {
      WaitUntil(kForSpace, target, describe, [&] { return !ring.full(); });
    }
    const uint64_t index = ring.num_written.load(std::memory_order_relaxed);
    ring.places[index % Ring::kCapacity].store(place, std::memory_order_relaxed);
    // Sequentially consistent: either it sees the message before it sleeps, or this sees it asleep.
    ring.num_written.store(index + 1, std::memory_order_seq_cst);
    WorkerStatus& receiver = memory_->status(target);
    if (receiver.waiting.load(std::memory_order_seq_cst) != kAwake) Wake(&receiver.doorbell);
  }
}

bool SharedTransport::AnythingToRead() const {
  for (int source = 0; source < memory_->num_workers(); ++source) {
    if (!memory_->ring(source, rank_).empty()) return true;
  }
  return false;
}

// Rings are emptied whatever is waited for, so that nobody waits for space that waits for this.
void SharedTransport::Drain() {
  for (int source = 0; source < memory_->num_workers(); ++source) {
    Ring& ring = memory_->ring(source, rank_);
    uint64_t index = ring.num_read.load(std::memory_order_relaxed);
    const uint64_t end = ring.num_written.load(std::memory_order_acquire);
    if (index == end) continue;
    for (; index != end; ++index) {
      const uint64_t place = ring.places[index % Ring::kCapacity].load(std::memory_order_relaxed);
      arrived_[source].push_back(reinterpret_cast<Block*>(memory_->arena(source) + place));
    }
    ring.num_read.store(end, std::memory_order_seq_cst);
    WorkerStatus& sender = memory_->status(source);
    if (sender.waiting.load(std::memory_order_seq_cst) == kForSpace) Wake(&sender.doorbell);
  }
}

Message SharedTransport::Take(int rank, uint64_t scope, const Describe& describe) {
  std::deque<Block*>& queue = arrived_[rank];
  auto found = queue.end();
  auto arrived = [&] {
    found = std::find_if(queue.begin(), queue.end(),
                         [scope](const Block* block) { return block->header.scope == scope; });
    return found != queue.end();
  };
  if (!arrived()) WaitUntil(kForMessage, -1, describe, arrived);
  Block* block = *found;
  queue.erase(found);
  return Message{&block->header, block->bytes(), block};
}

void SharedTransport::Release(const Message& message) noexcept {
  static_cast<Block*>(message.owner)->num_readers.fetch_sub(1, std::memory_order_release);
}

template <typename Ready>
void SharedTransport::WaitUntil(WaitKind kind, int full_ring_to, const Describe& describe,
                                Ready ready) {
  auto progress = [&] {
    Drain();
    return ready();
  };
  if (!memory_->aborted() && YieldUntil(progress)) return;
  const std::string what = describe();
  me_.wait.Set(what);
  me_.full_ring_to.store(full_ring_to, std::memory_order_relaxed);
  bool slept_long = false;
  while (true) {
    const uint32_t rung = me_.doorbell.load(std::memory_order_seq_cst);
    me_.num_waits.fetch_add(1, std::memory_order_seq_cst);
    me_.waiting.store(kind, std::memory_order_seq_cst);
    std::string deadlock;
    const bool space = kind == kForSpace && !memory_->ring(rank_, full_ring_to).full();
    if (!space && !AnythingToRead() && !memory_->aborted()) {
      if (slept_long) deadlock = FindDeadlock(what);
      if (deadlock.empty()) slept_long = !SleepWhile(me_.doorbell, rung, kSleep);
    }
    me_.waiting.store(kAwake, std::memory_order_seq_cst);
    if (progress()) return;
    if (memory_->aborted()) ThrowStopped(what);
    if (!deadlock.empty()) TVM_FFI_THROW(ValueError) << deadlock;
  }
}

// Whether a worker waits with nothing to read; `wait` is the number of the wait that it is in for
// as long as this takes, if a second call gives the same one.
bool SharedTransport::Blocked(int rank, uint64_t* wait) const {
  const WorkerStatus& status = memory_->status(rank);
  for (int source = 0; source < memory_->num_workers(); ++source) {
    if (!memory_->ring(source, rank).empty()) return false;
  }
  const uint32_t kind = status.waiting.load(std::memory_order_seq_cst);
  if (kind == kAwake) return false;
  if (kind == kForSpace) {
    const int target = status.full_ring_to.load(std::memory_order_relaxed);
    if (target >= 0 && !memory_->ring(rank, target).full()) return false;
  }
  *wait = status.num_waits.load(std::memory_order_seq_cst);
  return true;
}

std::string SharedTransport::FindDeadlock(const std::string& mine) const {
  const int n = memory_->num_workers();
  const int64_t now = step();
  std::vector<uint64_t> waits(n, 0);
  std::vector<bool> finished(n);
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (int r = 0; r < n; ++r) {
      const WorkerStatus& status = memory_->status(r);
      finished[r] = status.finished_step.load(std::memory_order_seq_cst) >= now;
      if (finished[r]) continue;
      uint64_t wait = 0;
      if (status.step.load(std::memory_order_seq_cst) != now || !Blocked(r, &wait)) return "";
      if (attempt == 1 && wait != waits[r]) return "";
      waits[r] = wait;
    }
  }
  std::ostringstream text;
  text << mine << " can never complete, the programs of the workers disagree";
  for (int r = 0; r < n; ++r) {
    if (r == rank_) continue;
    text << "; device " << device_ids_[r];
    if (finished[r]) {
      text << " has finished its program";
    } else {
      text << " waits in " << memory_->status(r).wait.Get();
    }
  }
  return text.str();
}

}  // namespace distir::runtime::cpu
