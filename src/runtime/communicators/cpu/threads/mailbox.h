/*!
 * \file runtime/communicators/cpu/threads/mailbox.h
 * \brief Queue of tensor boxes from one thread to another, first in, first out.
 *
 * Sending never waits. If the receiver already waits, the sender copies straight into the
 * receiver's tensor; otherwise it packs the box into a message of its own, because the sender's
 * program may overwrite its tensor as soon as Send returns.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_MAILBOX_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_MAILBOX_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/communicators/cpu/memory_box.h"
#include "runtime/communicators/cpu/threads/progress.h"

namespace distir::runtime::cpu {

class Mailbox {
 public:
  /*! \param name For messages: "channel 3 from device 0 to device 5". */
  Mailbox(std::string name, Progress* progress, const std::atomic<bool>* aborted)
      : name_(std::move(name)), progress_(progress), aborted_(aborted) {}

  void Send(const MemoryBox& source);

  /*!
   * \brief Waits for the next box and copies it to `target`.
   * \throws RuntimeError if the session is aborted, ValueError if the box that arrives is another
   *         one than expected, or none can ever arrive.
   */
  void Receive(int rank, const MemoryBox& target);

  /*! \brief Wakes the receiver so that it sees the session's abort. */
  void Wake();

 private:
  struct Message {
    MemoryBox box;
    std::vector<char> bytes;
  };
  struct Request {
    const MemoryBox* target;
    std::atomic<bool> done{false};
  };
  class Receiving;

  const std::string name_;
  Progress* const progress_;
  const std::atomic<bool>* const aborted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  std::atomic<int> num_messages_{0};  // size of messages_, readable without the lock
  Request* request_ = nullptr;        // of a receiver that waits and is not being served
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_MAILBOX_H_
