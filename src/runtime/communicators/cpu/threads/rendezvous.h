/*!
 * \file runtime/communicators/cpu/threads/rendezvous.h
 * \brief Meets the threads of a group: each shows its buffers, then works on everybody's.
 *
 * A collective is Enter, work, Leave. Between a member's Enter and Leave all members' buffers are
 * valid, so the work copies and reduces straight from them; it must not throw. Enter fails on all
 * members alike when their calls do not match, and on every waiting member once the session is
 * aborted. Leave does not fail: all members that have entered will leave in finite time.
 *
 * Invariant: either all members complete an Enter or none does. Arrivals are counted in one atomic
 * word; a member that gives up marks that word broken in the same way as others arrive, so nobody
 * works on the buffers of a member that is gone.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_RENDEZVOUS_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_RENDEZVOUS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/communicators/cpu/collective_call.h"
#include "runtime/communicators/cpu/direct_work.h"
#include "runtime/communicators/cpu/threads/progress.h"

namespace distir::runtime::cpu {

class Rendezvous {
 public:
  Rendezvous(std::vector<int> ranks, std::vector<int> device_ids, Progress* progress,
             const std::atomic<bool>* aborted);

  /*!
   * \brief Shows `call` and `mine` and waits for all members.
   * \return The buffers of all members, by position; valid until Leave.
   * \throws RuntimeError if the session is aborted, ValueError if the calls do not match or the
   *         members can never all arrive.
   */
  const Buffers* Enter(int position, const CollectiveCall& call, const Buffers& mine);

  /*! \brief Waits until all members have finished their work. */
  void Leave() noexcept;

  /*!
   * \brief Number of times all members have met or left (modulo 2^32); of one that has left and not
   *        entered again, the same as of all others.
   */
  uint32_t num_passed() const { return Generation(state_.load(std::memory_order_seq_cst)); }

  /*! \brief Wakes sleepers so that they see the session's abort. */
  void Wake();

 private:
  class Arrival;

  static uint32_t Generation(uint64_t state) { return static_cast<uint32_t>(state >> 32); }
  bool Passed(uint32_t generation) const {
    return Generation(state_.load(std::memory_order_seq_cst)) != generation;
  }
  bool Arrive(uint32_t* generation);
  void Withdraw(uint32_t generation, const std::string& why, bool mismatch);
  void CheckCalls() const;
  std::string Devices() const;

  static constexpr uint64_t kBroken = uint64_t{1} << 31;
  static constexpr uint64_t kCount = kBroken - 1;

  const std::vector<int> ranks_;
  const std::vector<int> device_ids_;  // by position
  Progress* const progress_;
  const std::atomic<bool>* const aborted_;
  std::vector<CollectiveCall> calls_;
  std::vector<Buffers> buffers_;

  // Generation (32 bits, counts completed meetings), broken (1 bit), members arrived (31 bits).
  std::atomic<uint64_t> state_{0};
  std::atomic<int> num_sleepers_{0};
  std::mutex mutex_;
  std::condition_variable passed_;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_RENDEZVOUS_H_
