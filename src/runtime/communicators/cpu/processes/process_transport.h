/*!
 * \file runtime/communicators/cpu/processes/process_transport.h
 * \brief Transport between worker processes: shared memory within a host, Peers (peers.h) to other
 * hosts.
 *
 * A worker that waits finds out whether its wait can never end, if all workers are on its host. It
 * looks at all workers' status twice: who is in the same wait both times, with nothing to read, was
 * in it at one moment together with all the others; what had been sent by then has been looked at;
 * and when nobody runs, nothing can change any more. Between hosts the controller does this.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PROCESS_TRANSPORT_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PROCESS_TRANSPORT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/communicators/cpu/processes/outbox.h"
#include "runtime/communicators/cpu/processes/peers.h"
#include "runtime/communicators/cpu/processes/shared_memory.h"
#include "runtime/communicators/cpu/transport.h"
#include "runtime/communicators/result_memory.h"

namespace distir::runtime::cpu {

class ProcessTransport : public Transport {
 public:
  /*!
   * \param connect_peers Null if all workers are on this host.
   */
  ProcessTransport(std::shared_ptr<SharedMemory> memory, int rank, std::vector<int> device_ids,
                   const ConnectPeers& connect_peers);
  ~ProcessTransport() override;

  char* Reserve(const MessageHeader& header) final;
  void Post(const std::vector<int>& ranks, const Describe& describe) final;
  Message Take(int rank, uint64_t scope, const Describe& describe) final;
  void Release(const Message& message) noexcept final;
  void WaitFor(const Describe& describe, const std::function<bool()>& ready) final;
  int64_t step() const final { return me_.step.load(std::memory_order_relaxed); }
  int64_t bytes_to_hosts() const final { return bytes_to_hosts_; }
  bool SeeTensors(const std::vector<int>& ranks) const final;
  tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) final {
    return tensors_->NewTensor(shape, dtype);
  }
  int64_t PlaceOf(const char* data) const final;
  char* At(int rank, int64_t place, int64_t num_bytes) const final;

  void StepBegins(int64_t step) noexcept;
  void StepEnds(int64_t step) noexcept;

 private:
  bool AnythingToRead() const;
  Room RoomForPeers() const;
  int LostPeer() const { return peers_ == nullptr ? -1 : peers_->lost(); }
  void CheckRoom(const std::string& what) const;
  void Drain();
  Message MessageAt(int source, uint64_t place) const;
  template <typename Ready>
  void WaitUntil(WaitKind kind, int full_ring_to, const Describe& describe, Ready ready);
  bool Blocked(int rank, uint64_t* wait) const;
  std::string FindDeadlock(const std::string& mine) const;

  const std::shared_ptr<SharedMemory> memory_;
  const int rank_;
  const std::vector<int> device_ids_;
  WorkerStatus& me_;
  Outbox outbox_;
  const std::shared_ptr<ResultMemory> tensors_;
  Slot reserved_;
  int64_t bytes_to_hosts_ = 0;
  std::vector<std::deque<Message>> arrived_;  // by source: seen, not yet taken
  std::vector<int> neighbours_;               // ranks on this host, this one included
  std::unique_ptr<Peers> peers_;              // nullptr if all workers are on this host
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PROCESS_TRANSPORT_H_
