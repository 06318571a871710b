/*!
 * \file runtime/nccl/nccl_backend.h
 * \brief Collectives between GPUs by NCCL. Registered under the name "nccl".
 *
 * Each worker has a CUDA device: the worker of rank i has device i, or entry i of the list in
 * DISTIR_EXT_CUDA_DEVICES ("0,2"). When a worker connects it joins a communicator of all
 * workers, for transfers; each other group gets its own when it is first used. All members of a
 * group use it in the same order among their groups (see communicator.h), so they also open their
 * groups in an order in which nobody waits for ever.
 *
 * Operations are enqueued on TVM's current stream of the device. What fails on the device shows
 * in a later call, at the latest in Synchronize.
 */
#ifndef DISTIR_RUNTIME_NCCL_NCCL_BACKEND_H_
#define DISTIR_RUNTIME_NCCL_NCCL_BACKEND_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/nccl/connection.h"
#include "runtime/nccl/unique_id_exchange.h"

namespace distir::runtime::nccl {

class NcclBackend : public Backend, public std::enable_shared_from_this<NcclBackend> {
 public:
  /*!
   * \param device_ids The device id of each rank, for messages.
   * \param cuda_devices The CUDA device of each rank.
   * \param exchange How the workers of a group find each other.
   * \param timeout How long a worker waits for what it has enqueued; zero waits for ever.
   */
  NcclBackend(std::vector<int> device_ids, std::vector<int> cuda_devices,
              std::unique_ptr<UniqueIdExchange> exchange, std::chrono::milliseconds timeout);

  std::unique_ptr<Communicator> Connect(int rank) final;
  DLDevice DeviceOf(int rank) const final { return {kDLCUDA, cuda_devices_[rank]}; }
  void Abort() noexcept final;
  void StepBegins(int, int64_t) noexcept final {}
  void StepEnds(int, int64_t) noexcept final {}

  /*! \brief Connects the calling worker to the other members of a group. */
  std::shared_ptr<Connection> Open(const std::vector<int>& ranks, int position);
  int num_workers() const { return static_cast<int>(device_ids_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  const std::vector<int> device_ids_;
  const std::vector<int> cuda_devices_;
  const std::unique_ptr<UniqueIdExchange> exchange_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  bool aborted_ = false;
  std::vector<std::weak_ptr<Connection>> connections_;
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_NCCL_NCCL_BACKEND_H_
