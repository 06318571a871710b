// Delivers messages between worker processes, and detects waits that cannot end.
#include "runtime/communicators/cpu/processes/process_transport.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "runtime/communicators/cpu/processes/futex.h"
#include "runtime/communicators/cpu/processes/shared_tensors.h"
#include "runtime/communicators/cpu/waiting_policy.h"

namespace distir::runtime::cpu {

namespace {

[[noreturn]] void ThrowStopped(const std::string& what) {
  TVM_FFI_THROW(RuntimeError) << what << " stopped because another worker failed";
  TVM_FFI_UNREACHABLE();
}

[[noreturn]] void ThrowDamaged(int device) {
  TVM_FFI_THROW(ValueError) << "what the worker of device " << device
                            << " has sent is no message: its process, or another one, has "
                            << "overwritten the memory that the workers of this host share";
  TVM_FFI_UNREACHABLE();
}

}  // namespace

ProcessTransport::ProcessTransport(std::shared_ptr<SharedMemory> memory, int rank,
                                   std::vector<int> device_ids, const ConnectPeers& connect_peers)
    : memory_(std::move(memory)),
      rank_(rank),
      device_ids_(std::move(device_ids)),
      me_(memory_->status(rank)),
      outbox_(memory_->arena(rank), memory_->arena_bytes()),
      tensors_(
          std::make_shared<ResultMemory>(SIZE_MAX, std::make_unique<SharedTensors>(memory_, rank))),
      arrived_(device_ids_.size()) {
  if (connect_peers != nullptr) {
    peers_ = connect_peers(RoomForPeers(), [this] {
      // As in Post: either it sees the message before it sleeps, or this sees it asleep.
      if (me_.waiting.load(std::memory_order_seq_cst) != kAwake) Wake(&me_.doorbell);
    });
  }
  for (int other = 0; other < memory_->num_workers(); ++other) {
    if (peers_ == nullptr || !peers_->Reaches(other)) neighbours_.push_back(other);
  }
}

// A receiver of all this needs room for the results, too, so half of the memory is never enough
// for one that does.
Room ProcessTransport::RoomForPeers() const {
  return {&memory_->unread_bytes(), memory_->arena_bytes() / 2};
}

ProcessTransport::~ProcessTransport() {
  for (const std::deque<Message>& queue : arrived_) {
    for (const Message& message : queue) {
      if (!message.is_shared) FreeBlock(static_cast<Block*>(message.owner));
    }
  }
}

void ProcessTransport::StepBegins(int64_t step) noexcept {
  me_.step.store(step, std::memory_order_seq_cst);
}

void ProcessTransport::StepEnds(int64_t step) noexcept {
  outbox_.Trim();
  me_.finished_step.store(step, std::memory_order_seq_cst);
}

bool ProcessTransport::SeeTensors(const std::vector<int>& ranks) const {
  return std::all_of(ranks.begin(), ranks.end(), [this](int rank) {
    return peers_ == nullptr || rank == rank_ || !peers_->Reaches(rank);
  });
}

int64_t ProcessTransport::PlaceOf(const char* data) const {
  const char* begin = memory_->tensors(rank_);
  const bool is_inside = data >= begin && data < begin + memory_->arena_bytes();
  return is_inside ? data - begin : -1;
}

char* ProcessTransport::Reserve(const MessageHeader& header) {
  reserved_ = outbox_.Allocate(header.num_bytes);
  reserved_.block->header = header;
  return reserved_.block->bytes();
}

void ProcessTransport::Post(const std::vector<int>& ranks, const Describe& describe) {
  if (memory_->aborted()) ThrowStopped(describe());
  const Slot slot = std::exchange(reserved_, Slot());
  Block* block = slot.block;
  block->num_readers.store(static_cast<uint32_t>(ranks.size()), std::memory_order_relaxed);
  outbox_.Sent(slot);
  const uint64_t place =
      static_cast<uint64_t>(reinterpret_cast<char*>(block) - memory_->arena(rank_));
  for (int target : ranks) {
    const Ring ring = memory_->ring(rank_, target);
    if (peers_ != nullptr && peers_->Reaches(target)) {
      ring.num_written.fetch_add(1, std::memory_order_seq_cst);
      bytes_to_hosts_ += slot.num_bytes;
      peers_->Send(target, block, slot.num_bytes);
      continue;
    }
    if (ring.full()) {
      WaitUntil(kForSpace, target, describe, [&] { return !ring.full(); });
    }
    const uint64_t index = ring.num_written.load(std::memory_order_relaxed);
    ring.place(index).store(place, std::memory_order_relaxed);
    // Sequentially consistent: either it sees the message before it sleeps, or this sees it asleep.
    ring.num_written.store(index + 1, std::memory_order_seq_cst);
    WorkerStatus& receiver = memory_->status(target);
    if (receiver.waiting.load(std::memory_order_seq_cst) != kAwake) Wake(&receiver.doorbell);
  }
}

bool ProcessTransport::AnythingToRead() const {
  if (peers_ != nullptr && peers_->AnythingArrived()) return true;
  for (int source : neighbours_) {
    if (!memory_->ring(source, rank_).empty()) return true;
  }
  return false;
}

// Rings are emptied whatever is waited for, so that nobody waits for space that waits for this.
void ProcessTransport::Drain() {
  if (peers_ != nullptr && peers_->must_progress()) peers_->Progress();
  if (peers_ != nullptr && peers_->AnythingArrived()) {
    for (const auto& [source, block] : peers_->TakeArrived()) {
      arrived_[source].push_back({block->header, block->bytes(), block, false});
      memory_->ring(source, rank_).num_read.fetch_add(1, std::memory_order_seq_cst);
    }
  }
  for (int source : neighbours_) {
    const Ring ring = memory_->ring(source, rank_);
    uint64_t index = ring.num_read.load(std::memory_order_relaxed);
    const uint64_t end = ring.num_written.load(std::memory_order_acquire);
    if (index == end) continue;
    if (end - index > Ring::kCapacity) ThrowDamaged(device_ids_[source]);
    // As many as its memory has room for; one can be stated over and over.
    if (arrived_[source].size() > memory_->arena_bytes() / Outbox::kLeastBytes)
      ThrowDamaged(device_ids_[source]);
    for (; index != end; ++index) {
      const uint64_t place = ring.place(index).load(std::memory_order_relaxed);
      arrived_[source].push_back(MessageAt(source, place));
    }
    ring.num_read.store(end, std::memory_order_seq_cst);
    WorkerStatus& sender = memory_->status(source);
    if (sender.waiting.load(std::memory_order_seq_cst) == kForSpace) Wake(&sender.doorbell);
  }
}

// A message at a place that its sender has stated, in memory that it can go on writing to.
Message ProcessTransport::MessageAt(int source, uint64_t place) const {
  const uint64_t size = memory_->arena_bytes();
  if (place % alignof(Block) != 0 || place > size - sizeof(Block))
    ThrowDamaged(device_ids_[source]);
  Block* block = reinterpret_cast<Block*>(memory_->arena(source) + place);
  Message message{MessageHeader(), block->bytes(), block, true};
  std::memcpy(&message.header, &block->header, sizeof(MessageHeader));
  std::atomic_signal_fence(std::memory_order_seq_cst);  // what is looked at is the copy
  if (!message.header.IsValid(static_cast<int64_t>(size - sizeof(Block) - place)))
    ThrowDamaged(device_ids_[source]);
  return message;
}

char* ProcessTransport::At(int rank, int64_t place, int64_t num_bytes) const {
  const int64_t size = static_cast<int64_t>(memory_->arena_bytes());
  if (place < 0 || num_bytes > size || place > size - num_bytes) ThrowDamaged(device_ids_[rank]);
  return memory_->tensors(rank) + place;
}

Message ProcessTransport::Take(int rank, uint64_t scope, const Describe& describe) {
  std::deque<Message>& queue = arrived_[rank];
  auto found = queue.end();
  auto arrived = [&] {
    found = std::find_if(queue.begin(), queue.end(),
                         [scope](const Message& each) { return each.header.scope == scope; });
    return found != queue.end();
  };
  if (!arrived()) WaitUntil(kForMessage, -1, describe, arrived);
  const Message message = *found;
  queue.erase(found);
  if (!message.is_shared) peers_->GiveBack(rank, message.header.num_bytes);
  return message;
}

void ProcessTransport::Release(const Message& message) noexcept {
  Block* block = static_cast<Block*>(message.owner);
  if (!message.is_shared) {
    FreeBlock(block);
  } else {
    block->num_readers.fetch_sub(1, std::memory_order_release);
  }
}

void ProcessTransport::WaitFor(const Describe& describe, const std::function<bool()>& ready) {
  WaitUntil(kForDevice, -1, describe, ready);
}

template <typename Ready>
void ProcessTransport::WaitUntil(WaitKind kind, int full_ring_to, const Describe& describe,
                                 Ready ready) {
  auto progress = [&] {
    Drain();
    return ready();
  };
  const bool looks = peers_ != nullptr && peers_->must_progress();
  if (!memory_->aborted() && YieldUntil(progress, looks ? kYieldsOfLooking : kYields)) return;
  const std::chrono::microseconds sleep = looks ? kSleepOfLooking : kSleep;
  const std::string what = describe();
  me_.wait.Set(what);
  me_.full_ring_to.store(full_ring_to, std::memory_order_relaxed);
  me_.num_waits.fetch_add(1, std::memory_order_seq_cst);
  bool slept_long = false;
  while (true) {
    const uint32_t rung = me_.doorbell.load(std::memory_order_seq_cst);
    me_.waiting.store(kind, std::memory_order_seq_cst);
    std::string deadlock;
    const bool space = kind == kForSpace && !memory_->ring(rank_, full_ring_to).full();
    if (!space && !AnythingToRead() && !memory_->aborted() && LostPeer() < 0) {
      if (slept_long && peers_ == nullptr) deadlock = FindDeadlock(what);
      if (deadlock.empty()) slept_long = !SleepWhile(me_.doorbell, rung, sleep);
    }
    me_.waiting.store(kAwake, std::memory_order_seq_cst);
    if (progress()) return;
    if (memory_->aborted()) ThrowStopped(what);
    CheckRoom(what);
    if (const int lost = LostPeer(); lost >= 0) {
      memory_->Abort(-1);  // whatever ended the connection is the failure, and this follows from it
      TVM_FFI_THROW(RuntimeError) << what << " stopped because the connection to device "
                                  << device_ids_[lost] << " on another host has ended";
    }
    if (!deadlock.empty()) TVM_FFI_THROW(ValueError) << deadlock;
  }
}

void ProcessTransport::CheckRoom(const std::string& what) const {
  const int flooding = peers_ == nullptr ? -1 : peers_->flooding();
  if (flooding < 0) return;
  TVM_FFI_THROW(RuntimeError) << what << " stopped because workers of other hosts have sent more "
                              << "than the " << RoomForPeers().limit << " bytes that this host "
                              << "keeps for workers that do not receive them, most of them here "
                              << "device " << device_ids_[flooding];
}

// True if a worker waits with nothing to read; `wait` is the number of its wait.
bool ProcessTransport::Blocked(int rank, uint64_t* wait) const {
  const WorkerStatus& status = memory_->status(rank);
  for (int source = 0; source < memory_->num_workers(); ++source) {
    if (!memory_->ring(source, rank).empty()) return false;
  }
  const uint32_t kind = status.waiting.load(std::memory_order_seq_cst);
  if (kind == kAwake) return false;
  if (kind == kForSpace) {
    const int target = status.full_ring_to.load(std::memory_order_relaxed);
    if (target >= 0 && target < memory_->num_workers() && !memory_->ring(rank, target).full())
      return false;
  }
  *wait = status.num_waits.load(std::memory_order_seq_cst);
  return true;
}

std::string ProcessTransport::FindDeadlock(const std::string& mine) const {
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
