/*!
 * \file runtime/communicators/cpu/processes/futex.h
 * \brief Waits until a word in shared memory changes (Linux).
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_FUTEX_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_FUTEX_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace distir::runtime::cpu {

/*! \brief Sleeps while `word` is `expected`, at most for `limit`. May return early. */
inline bool SleepWhile(const std::atomic<uint32_t>& word, uint32_t expected,
                       std::chrono::microseconds limit) noexcept {
  timespec time{};
  time.tv_sec = limit.count() / 1000000;
  time.tv_nsec = limit.count() % 1000000 * 1000;
  return syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0) == 0;
}

/*! \brief Changes `word` and wakes who sleeps on it. */
inline void Wake(std::atomic<uint32_t>* word) noexcept {
  word->fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_FUTEX_H_
