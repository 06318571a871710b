// Meets the threads of a group, and checks that their calls agree.
#include "runtime/communicators/cpu/threads/rendezvous.h"

#include <tvm/ffi/error.h>

#include <utility>

#include "runtime/communicators/cpu/waiting_policy.h"
#include "runtime/kernels/format_list.h"

namespace distir::runtime::cpu {

// A member that has arrived and waits for the others.
class Rendezvous::Arrival : public Waiting {
 public:
  Arrival(const Rendezvous* rendezvous, const char* operation, uint32_t generation)
      : rendezvous_(rendezvous), operation_(operation), generation_(generation) {}
  bool Satisfied() const final { return rendezvous_->Passed(generation_); }
  std::string Describe() const final { return operation_ + rendezvous_->Devices(); }

 private:
  const Rendezvous* rendezvous_;
  std::string operation_;
  uint32_t generation_;
};

Rendezvous::Rendezvous(std::vector<int> ranks, std::vector<int> device_ids, Progress* progress,
                       const std::atomic<bool>* aborted)
    : ranks_(std::move(ranks)),
      device_ids_(std::move(device_ids)),
      progress_(progress),
      aborted_(aborted),
      calls_(ranks_.size()),
      buffers_(ranks_.size()) {}

std::string Rendezvous::Devices() const { return " over devices " + FormatList(device_ids_); }

// Counts the caller in; the last member starts the next generation and wakes the others.
// Returns false, without counting, if a member has given up.
bool Rendezvous::Arrive(uint32_t* generation) {
  uint64_t state = state_.load(std::memory_order_seq_cst);
  while (true) {
    if (state & kBroken) return false;
    const bool last = (state & kCount) + 1 == ranks_.size();
    const uint64_t next = last ? static_cast<uint64_t>(Generation(state) + 1) << 32 : state + 1;
    if (!state_.compare_exchange_weak(state, next, std::memory_order_seq_cst)) continue;
    *generation = Generation(state);
    // A sleeper counts itself before it looks at the state a last time: one of the two sees it.
    if (last && num_sleepers_.load(std::memory_order_seq_cst) > 0) Wake();
    return true;
  }
}

void Rendezvous::Wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  passed_.notify_all();
}

// Gives up waiting, unless all members have arrived meanwhile: then the meeting takes place.
void Rendezvous::Withdraw(uint32_t generation, const std::string& why, bool mismatch) {
  uint64_t state = state_.load(std::memory_order_seq_cst);
  do {
    if (Generation(state) != generation) return;
  } while (!state_.compare_exchange_weak(state, state | kBroken, std::memory_order_seq_cst));
  if (mismatch) TVM_FFI_THROW(ValueError) << why;
  TVM_FFI_THROW(RuntimeError) << why;
}

const Buffers* Rendezvous::Enter(int position, const CollectiveCall& call, const Buffers& mine) {
  static constexpr const char* kStopped = " stopped because another worker failed";
  const int rank = ranks_[position];
  calls_[position] = call;
  buffers_[position] = mine;
  uint32_t generation = 0;
  if (aborted_->load(std::memory_order_relaxed) || !Arrive(&generation)) {
    TVM_FFI_THROW(RuntimeError) << call.operation << Devices() << kStopped;
  }
  if (!YieldUntil([&] { return Passed(generation); })) {
    Arrival arrival(this, call.operation, generation);
    progress_->WaitBegins(rank, &arrival);
    try {
      while (!Passed(generation)) {
        {
          std::unique_lock<std::mutex> lock(mutex_);
          num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
          passed_.wait_for(lock, kSleep, [&] {
            return Passed(generation) || aborted_->load(std::memory_order_relaxed);
          });
          num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
        }
        if (Passed(generation)) break;
        if (aborted_->load(std::memory_order_relaxed)) {
          Withdraw(generation, std::string(call.operation) + Devices() + kStopped, false);
        } else {
          const std::string deadlock = progress_->FindDeadlock(rank);
          if (!deadlock.empty()) Withdraw(generation, deadlock, true);
        }
      }
    } catch (...) {
      progress_->WaitEnds(rank);
      throw;
    }
    progress_->WaitEnds(rank);
  }
  CheckCalls();
  return buffers_.data();
}

void Rendezvous::CheckCalls() const {
  for (size_t i = 1; i < calls_.size(); ++i) {
    if (calls_[0].Matches(calls_[i])) continue;
    ThrowDisagreement(device_ids_[0], calls_[0], device_ids_[i], calls_[i]);
  }
}

void Rendezvous::Leave() noexcept {
  uint32_t generation = 0;
  // Only a waiting Enter breaks a rendezvous, and nobody can be in one while members are inside.
  Arrive(&generation);
  if (YieldUntil([&] { return Passed(generation); })) return;
  std::unique_lock<std::mutex> lock(mutex_);
  num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (!Passed(generation)) passed_.wait_for(lock, kSleep);
  num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace distir::runtime::cpu
