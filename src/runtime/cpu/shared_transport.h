/*!
 * \file runtime/cpu/shared_transport.h
 * \brief Messages through memory that the processes of one host share.
 *
 * A worker that waits finds out whether its wait can never end. It looks at all workers' status
 * twice: who is in the same wait both times, with nothing to read in between, was in it at one
 * moment together with all the others; and when nobody runs, nothing can change any more.
 */
#ifndef DISTIR_RUNTIME_CPU_SHARED_TRANSPORT_H_
#define DISTIR_RUNTIME_CPU_SHARED_TRANSPORT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cpu/outbox.h"
#include "runtime/cpu/shared_memory.h"
#include "runtime/cpu/transport.h"

namespace distir::runtime::cpu {

class SharedTransport : public Transport {
 public:
  SharedTransport(std::shared_ptr<SharedMemory> memory, int rank, std::vector<int> device_ids);

  char* Reserve(const MessageHeader& header) final;
  void Post(const std::vector<int>& ranks, const Describe& describe) final;
  Message Take(int rank, uint64_t scope, const Describe& describe) final;
  void Release(const Message& message) noexcept final;
  int64_t step() const final { return me_.step.load(std::memory_order_relaxed); }

  void StepBegins(int64_t step) noexcept;
  void StepEnds(int64_t step) noexcept;

 private:
  bool AnythingToRead() const;
  void Drain();
  template <typename Ready>
  void WaitUntil(WaitKind kind, int full_ring_to, const Describe& describe, Ready ready);
  bool Blocked(int rank, uint64_t* wait) const;
  std::string FindDeadlock(const std::string& mine) const;

  const std::shared_ptr<SharedMemory> memory_;
  const int rank_;
  const std::vector<int> device_ids_;
  WorkerStatus& me_;
  Outbox outbox_;
  Block* reserved_ = nullptr;
  std::vector<std::deque<Block*>> arrived_;  // by source: read from the ring, not yet taken
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_CPU_SHARED_TRANSPORT_H_
