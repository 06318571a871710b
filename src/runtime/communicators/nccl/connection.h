/*!
 * \file runtime/communicators/nccl/connection.h
 * \brief One rank's NCCL communicator of one group, which another thread may abort.
 *
 * Its worker enqueues operations through it; each is checked and takes the lock, so that an abort
 * does not free the communicator under a call that is about to begin. An abort that finds the
 * worker stuck inside NCCL goes ahead all the same: it is what makes that call return.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_CONNECTION_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_CONNECTION_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "runtime/communicators/nccl/abi.h"

namespace distir::runtime::nccl {

/*! \brief When to stop waiting for other workers. */
struct Patience {
  /*! \brief Zero waits for ever. */
  std::chrono::milliseconds timeout;
  /*! \brief Whether another worker has failed. */
  std::function<bool()> aborted;
};

/*!
 * \brief A communicator that `make` has made, by a call of NCCL that waits for others and can not
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
   * \param comm It is destroyed here.
   * \param description For messages: "devices [0, 1]".
   */
  Connection(Comm comm, std::string description);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /*!
   * \brief Runs `enqueue(communicator)`, which returns NCCL's result.
   * \param operation For messages: "all_reduce".
   * \throws RuntimeError if the connection is aborted or has failed, or NCCL refuses.
   */
  template <typename Enqueue>
  void Run(const char* operation, Enqueue enqueue) {
    std::lock_guard<std::timed_mutex> lock(mutex_);
    Check(operation);
    const int result = enqueue(comm_);
    if (result != kNcclSuccess) Fail(operation, result);
  }

  /*! \brief Throws RuntimeError if the connection is aborted, or NCCL has met an error. */
  void CheckHealth(const char* operation);

  /*! \brief Ends what is enqueued, and makes later calls throw. From any thread; idempotent. */
  void Abort() noexcept;

  /*! \brief For what waits for other workers; an abort ends it. */
  Comm comm() const { return comm_; }

 private:
  void Check(const char* operation) const;
  [[noreturn]] void Fail(const char* operation, int result) const;

  const Comm comm_;
  const std::string description_;
  std::timed_mutex mutex_;
  std::atomic<bool> aborted_{false};
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_CONNECTION_H_
