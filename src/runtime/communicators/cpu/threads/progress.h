/*!
 * \file runtime/communicators/cpu/threads/progress.h
 * \brief Tracks the state of a session's workers, and detects deadlocks.
 *
 * Programs that disagree (one worker skips a collective, two call them in different orders) would
 * wait for each other forever. Within one step a worker is running, waiting or finished; when no
 * worker is running and no wait is satisfied, nothing can change any more.
 *
 * Invariant: a worker changes between these states only under the lock, so while FindDeadlock
 * looks at the workers one after the other, a running worker cannot slip away unseen.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_PROGRESS_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace distir::runtime::cpu {

/*! \brief Something that a worker waits for. */
class Waiting {
 public:
  virtual ~Waiting() = default;
  /*! \brief True if the wait is about to end. Takes no locks. */
  virtual bool Satisfied() const = 0;
  /*! \brief For messages: "all_reduce over devices [0, 1]". */
  virtual std::string Describe() const = 0;
};

class Progress {
 public:
  explicit Progress(std::vector<int> device_ids);

  void StepBegins(int rank, int64_t step);
  void StepEnds(int rank, int64_t step);
  /*! \brief The step that a worker runs. */
  int64_t step(int rank) const { return workers_[rank].step.load(std::memory_order_relaxed); }

  void WaitBegins(int rank, const Waiting* waiting);
  void WaitEnds(int rank);
  /*! \brief Call that a worker waits in, or an empty string. */
  std::string WaitOf(int rank) const;

  /*!
   * \brief Called by a worker that has waited for long.
   * \return Why its wait can never end, or an empty string if it still may.
   */
  std::string FindDeadlock(int rank) const;

 private:
  struct Worker {
    std::atomic<int64_t> step{0};
    int64_t finished_step = 0;
    const Waiting* waiting = nullptr;
  };

  const std::vector<int> device_ids_;
  mutable std::mutex mutex_;
  std::vector<Worker> workers_;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_PROGRESS_H_
