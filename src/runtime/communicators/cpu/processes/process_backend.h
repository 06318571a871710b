/*!
 * \file runtime/communicators/cpu/processes/process_backend.h
 * \brief Collectives between workers that are processes; one worker's end.
 *
 * Steps, failures and their end go through the memory that a host's workers share, whatever the
 * workers compute on. Collectives on GPUs are another backend's.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PROCESS_BACKEND_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PROCESS_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/cpu/message_communicator.h"
#include "runtime/communicators/cpu/processes/process_transport.h"

namespace distir::runtime::cpu {

class ProcessBackend : public Backend {
 public:
  /*!
   * \param peers As of ProcessTransport.
   * \param collectives What connects the workers; null: messages through the host's memory.
   */
  ProcessBackend(std::shared_ptr<SharedMemory> memory, int rank, std::vector<int> device_ids,
                 const std::vector<Peer>& peers, std::shared_ptr<Backend> collectives)
      : memory_(std::move(memory)),
        rank_(rank),
        device_ids_(std::move(device_ids)),
        transport_(std::make_shared<ProcessTransport>(memory_, rank, device_ids_, peers)),
        collectives_(std::move(collectives)) {}

  std::unique_ptr<Communicator> Connect(int rank) final {
    if (collectives_ != nullptr) return collectives_->Connect(rank);
    return std::make_unique<MessageCommunicator>(transport_, rank_, device_ids_);
  }
  DLDevice DeviceOf(int rank) const final {
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

  /*! \brief Whether this worker's failure came before all others'. */
  bool aborted_first() const { return aborted_first_.load(std::memory_order_acquire); }

 private:
  const std::shared_ptr<SharedMemory> memory_;
  const int rank_;
  const std::vector<int> device_ids_;
  const std::shared_ptr<ProcessTransport> transport_;
  const std::shared_ptr<Backend> collectives_;
  std::atomic<bool> aborted_first_{false};
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PROCESS_BACKEND_H_
