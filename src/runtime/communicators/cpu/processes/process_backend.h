/*!
 * \file runtime/communicators/cpu/processes/process_backend.h
 * \brief Collectives between workers that are processes; one worker's end.
 *
 * Steps, failures and their end go through the memory that a host's workers share, whatever the
 * workers compute on. Collectives on GPUs are another backend's, or go through host memory
 * (device_communicator.h).
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PROCESS_BACKEND_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PROCESS_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/cpu/device_communicator.h"
#include "runtime/communicators/cpu/hierarchical_communicator.h"
#include "runtime/communicators/cpu/message_communicator.h"
#include "runtime/communicators/cpu/processes/process_transport.h"

namespace distir::runtime::cpu {

class ProcessBackend : public Backend {
 public:
  /*!
   * \param workers Those of the session.
   * \param connect_peers As of ProcessTransport.
   * \param collectives Backend that connects the workers; null: messages.
   * \param carries True if that only carries messages between hosts.
   * \param device The kind of the worker's device (worker_device.h), if messages are between
   *        workers on such devices; empty: they have tensors in host memory.
   */
  ProcessBackend(std::shared_ptr<SharedMemory> memory, const WorkerSet& workers,
                 const ConnectPeers& connect_peers, std::shared_ptr<Backend> collectives,
                 bool carries, const std::string& device)
      : memory_(std::move(memory)),
        rank_(workers.own_rank),
        device_ids_(workers.device_ids),
        host_of_(workers.host_of),
        bitwise_(workers.bitwise),
        transport_(std::make_shared<ProcessTransport>(memory_, rank_, device_ids_, connect_peers)),
        collectives_(std::move(collectives)),
        carries_(carries) {
    if (device.empty()) return;
    device_ = MakeWorkerDevice(device, workers, wait());
    device_place_ = device_->device();
  }

  std::unique_ptr<Communicator> Connect(int rank) final {
    if (collectives_ != nullptr && !carries_) return collectives_->Connect(rank);
    std::unique_ptr<Communicator> made = std::make_unique<MessageCommunicator>(
        transport_, rank_, device_ids_, carries_ ? collectives_->Collectives(rank) : nullptr);
    if (std::set<int>(host_of_.begin(), host_of_.end()).size() >= 2)
      made = std::make_unique<HierarchicalCommunicator>(std::move(made), host_of_, bitwise_);
    if (device_ == nullptr) return made;
    return std::make_unique<DeviceCommunicator>(
        std::move(made), std::move(device_), carries_ ? collectives_->Collectives(rank) : nullptr,
        wait(), rank_, device_ids_);
  }
  DLDevice DeviceOf(int rank) const final {
    if (device_place_.device_type != kDLCPU) return device_place_;
    return collectives_ == nullptr ? Backend::DeviceOf(rank) : collectives_->DeviceOf(rank);
  }
  void Abort() noexcept final {
    if (memory_->Abort(rank_)) aborted_first_.store(true, std::memory_order_release);
    if (collectives_ != nullptr) collectives_->Abort();
  }
  void WorkersEnded() noexcept final {
    if (collectives_ != nullptr) collectives_->WorkersEnded();
  }
  void StepBegins(int, int64_t step) noexcept final { transport_->StepBegins(step); }
  void StepEnds(int, int64_t step) noexcept final { transport_->StepEnds(step); }

  /*! \brief True if this worker's failure came before all others'. */
  bool aborted_first() const { return aborted_first_.load(std::memory_order_acquire); }

 private:
  WaitUntil wait() const {
    return [transport = transport_](const Describe& what, const std::function<bool()>& ready) {
      transport->WaitFor(what, ready);
    };
  }

  const std::shared_ptr<SharedMemory> memory_;
  const int rank_;
  const std::vector<int> device_ids_;
  const std::vector<int> host_of_;
  const bool bitwise_;
  const std::shared_ptr<ProcessTransport> transport_;
  const std::shared_ptr<Backend> collectives_;
  const bool carries_;
  std::unique_ptr<WorkerDevice> device_;  // until its communicator has it
  DLDevice device_place_{kDLCPU, 0};
  std::atomic<bool> aborted_first_{false};
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PROCESS_BACKEND_H_
