/*!
 * \file runtime/communicators/cpu/waiting_policy.h
 * \brief Time that a thread waiting for its peers stays awake.
 *
 * Peers usually arrive within microseconds, and sleeping and waking cost two system calls. Giving
 * up the core between two looks, instead of spinning on it, lets a peer run that has no core: with
 * more workers than cores, and on a machine that others use too, a spin keeps away the very
 * thread that is waited for (measured: 100 instead of 3 microseconds per all-reduce).
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_WAITING_POLICY_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_WAITING_POLICY_H_

#include <chrono>
#include <thread>

namespace distir::runtime::cpu {

/*! \brief Number of times that a thread gives up the core before it sleeps. */
constexpr int kYields = 100;
/*! \brief Number of times if nobody wakes it, so that it has to poll: about a millisecond. */
constexpr int kYieldsOfLooking = 2000;

/*! \brief True if `ready()` became true before the thread should sleep. */
template <typename Ready>
bool YieldUntil(Ready ready, int yields = kYields) {
  for (int i = 0; i < yields; ++i) {
    if (ready()) return true;
    std::this_thread::yield();
  }
  return ready();
}

/*! \brief A sleeper looks around this often even if nobody wakes it. */
constexpr std::chrono::milliseconds kSleep{100};
/*! \brief Sleep between two polls, if nobody wakes the thread. */
constexpr std::chrono::microseconds kSleepOfLooking{50};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_WAITING_POLICY_H_
