/*!
 * \file runtime/communicators/nccl/connection.h
 * \brief NCCL communicator of one rank in one group, which another thread may abort.
 *
 * Its worker enqueues operations through it, and is the only one that may free it while a call of
 * NCCL uses it. A thread that ends several of them tells all before it waits for any, because the
 * kernel of one may be queued behind that of another:
 *
 *  - ncclCommRevoke, which NCCL has from 2.28 on, makes kernels and calls return and frees nothing:
 *    it may come while the worker is inside NCCL. The worker destroys the communicator.
 *  - Without it, and where NCCL refuses it, there is ncclCommAbort, which frees. It comes when no
 *    call is inside; a call that never returns keeps its communicator, and its thread, until the
 *    process ends.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_CONNECTION_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_CONNECTION_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/communicators/nccl/abi.h"

namespace distir::runtime::nccl {

/*! \brief Conditions to stop waiting for other workers. */
struct Patience {
  /*! \brief Zero waits for ever. */
  std::chrono::milliseconds timeout;
  /*! \brief True if another worker has failed. */
  std::function<bool()> aborted;
};

/*!
 * \brief A communicator that `make` has made, by a call of NCCL that waits for others and cannot
 * be interrupted: a thread of its own calls it, and keeps what comes of it after the wait was given
 * up. Null if the worker is in no group.
 * \param device The CUDA device of the worker.
 * \param what For messages: "connecting devices [0, 1]".
 * \throws RuntimeError if NCCL refuses, or the patience is at its end.
 */
Comm MakeComm(int device, const std::string& what, const Patience& patience,
              std::function<int(Comm*)> make);

class Connection {
 public:
  /*!
   * \param comm It is destroyed by Close.
   * \param description For messages: "devices [0, 1]".
   */
  Connection(Comm comm, std::string description);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /*!
   * \brief Runs `enqueue(communicator)`, which returns NCCL's result.
   * \param operation For messages: "all_reduce".
   * \throws RuntimeError if the connection is ended or has failed, or NCCL refuses.
   */
  template <typename Enqueue>
  void Run(const char* operation, Enqueue enqueue) {
    CheckNotEnded(operation);
    const std::lock_guard<std::mutex> lock(inside_);
    Check(operation);
    inside_since_.store(std::chrono::steady_clock::now().time_since_epoch().count());
    const int result = enqueue(comm_);
    inside_since_.store(0);
    if (result != kNcclSuccess) Fail(operation, result);
  }

  /*!
   * \brief Time since the worker has entered a call of NCCL; zero if it is in none. A call that
   *        only enqueues takes microseconds; the first of a group waits for its members.
   */
  std::chrono::steady_clock::duration TimeInside() const;

  /*! \brief Makes the call that the worker is in an error that says how long it took. */
  void TakesTooLong(std::chrono::milliseconds limit) { too_long_.store(limit.count()); }

  /*! \brief Runs a call as Run, and returns NCCL's result; an error if the connection is ended. */
  template <typename Call>
  int Use(Call call) {
    const std::lock_guard<std::mutex> lock(inside_);
    return ended_.load() ? kNcclInternalError : call(comm_);
  }

  /*! \brief Throws RuntimeError if the connection is ended, or NCCL has met an error. */
  void CheckHealth(const char* operation);

  /*!
   * \brief Frees the communicator. Called once, by its worker; what it has enqueued is done, or
   *        the connection was ended. One that does not come to its end is kept.
   */
  void Close() noexcept;

 private:
  friend void EndTogether(std::vector<std::shared_ptr<Connection>> connections) noexcept;
  friend void RevokeAll(const std::vector<std::shared_ptr<Connection>>& connections);
  friend void AbortAll(std::vector<std::shared_ptr<Connection>> connections);

  enum class State { kOpen, kEnding, kRevoked, kFreed };

  void CheckNotEnded(const char* operation) const;
  void Check(const char* operation) const;
  [[noreturn]] void Fail(const char* operation, int result) const;
  /*! \brief Leaves the open state; true if it was open. */
  bool Leave(State next);
  void SetState(State next);

  const Comm comm_;
  const std::string description_;
  std::mutex inside_;  // held during calls of NCCL
  std::atomic<std::chrono::steady_clock::rep> inside_since_{0};
  std::atomic<int64_t> too_long_{0};  // milliseconds
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kOpen;
};

/*! \brief An error of what has not ended in time, and the likely cause. */
[[noreturn]] void FailAsTooLong(const std::string& what, std::chrono::milliseconds limit);

/*!
 * \brief Ends what is enqueued on connections, and makes later calls throw. From any thread; it
 *        returns at once, also where the end takes time. Those that were ended are left alone.
 */
void EndTogether(std::vector<std::shared_ptr<Connection>> connections) noexcept;

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_CONNECTION_H_
