/*!
 * \file runtime/communicators/nccl/devices/staging.h
 * \brief Ring of pinned host memory through which a worker copies arguments to its GPU.
 *
 * A copy from pinned memory makes neither side wait. Memory that is not pinned may be read only
 * when the copy's turn comes, so it would have to stay as it is until then. The pinned memory is a
 * ring: what is copied goes behind what was copied before, and waits only where the ring is full.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_STAGING_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_STAGING_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "runtime/communicators/nccl/abi.h"

namespace distir::runtime::nccl {

class Staging {
 public:
  /*!
   * \param wait Called again and again while the ring is full, with how often it was called for the
   *        same wait; it throws to give up.
   */
  explicit Staging(std::function<void(int64_t)> wait);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /*! \brief Enqueues a copy to the device; the source may be changed when it returns. */
  void Copy(const void* source, void* target, int64_t bytes, Stream stream);

  /*! \brief Leaves the memory to the process: a device that is stuck may still read it. */
  void Abandon() { ring_ = nullptr; }

 private:
  struct Part {
    int64_t end;
    Event event;
  };
  /*! \brief Reserves so many bytes, at most kLargestPart, and returns their offset. */
  int64_t Reserve(int64_t bytes);
  Event NewEvent();

  std::function<void(int64_t)> wait_;
  char* ring_ = nullptr;
  int64_t head_ = 0;          // behind the newest part
  std::deque<Part> pending_;  // in the order of the ring, the oldest first
  int64_t tail_ = 0;          // where the oldest part begins
  std::vector<Event> free_events_;
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_DEVICES_STAGING_H_
