/*!
 * \file runtime/communicators/nccl/nccl_backend.h
 * \brief Collectives between GPUs by NCCL. Registered under the name "nccl".
 *
 * Each worker has a CUDA device: the i-th one of a host has device i, or entry i of the list in
 * DISTIR_EXT_CUDA_DEVICES ("0,2"). Workers that are processes can have one device together.
 *
 * The workers join one communicator, in which transfers go from worker to worker. Groups are split
 * from it when they are opened, which all workers of the session do together.
 *
 * Operations are enqueued on TVM's current stream of the device, which is one of the worker's own.
 * A failure on the device shows in a later call, at the latest in Synchronize. No two sessions
 * have a device together: of one process (device_claim.h), or of several (device_lock.h).
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_NCCL_BACKEND_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_NCCL_BACKEND_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/nccl/connection.h"
#include "runtime/communicators/nccl/devices/device_claim.h"

namespace distir::runtime::nccl {

class NcclBackend : public Backend, public std::enable_shared_from_this<NcclBackend> {
 public:
  /*!
   * \param cuda_devices The CUDA device of each worker of this host, in order.
   * \param timeout Time that a worker waits for others to connect, and for what it has enqueued;
   *        zero waits for ever.
   */
  NcclBackend(WorkerSet workers, std::vector<int> cuda_devices, std::chrono::milliseconds timeout);
  ~NcclBackend() override;

  std::unique_ptr<Communicator> Connect(int rank) final;
  DLDevice DeviceOf(int rank) const final { return {kDLCUDA, CudaDeviceOf(rank)}; }
  void Abort() noexcept final;
  void StepBegins(int, int64_t) noexcept final {}
  void StepEnds(int, int64_t) noexcept final {}
  std::string WaitOf(int rank) const final;
  void WorkersEnded() noexcept final { claim_.Release(); }

  /*!
   * \brief Makes a communicator of the calling worker, which `make` does; see MakeComm.
   * \param description For messages: "devices [0, 1]".
   * \return Null if the worker is in no group.
   */
  std::shared_ptr<Connection> Open(int rank, const std::string& description,
                                   std::function<int(Comm*)> make);

  /*! \brief A worker begins, or ends, to wait for its device. */
  void SetWaiting(int rank, bool waits);

  /*! \brief True if a worker has failed; then this one's connections are aborted. */
  bool SeesAbort() noexcept;

  int CudaDeviceOf(int rank) const;
  bool are_processes() const { return workers_.own_rank >= 0; }
  int num_workers() const { return static_cast<int>(workers_.device_ids.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /*! \brief For messages: "devices [0, 1]". */
  std::string Describe(const std::vector<int>& ranks) const;

 private:
  const WorkerSet workers_;
  const std::vector<int> cuda_devices_;
  const std::chrono::milliseconds timeout_;
  DeviceClaim claim_;
  const std::unique_ptr<std::atomic<bool>[]> waits_;   // for its device, by rank
  const std::unique_ptr<std::atomic<bool>[]> inside_;  // of NCCL for long
  std::atomic<bool> aborted_{false};
  /*!
   * \brief Looks after workers that are inside NCCL, and cannot look themselves whether another
   *        one has failed, or the time is over.
   */
  void Watch();
  void SetInside(int rank, bool is_inside);
  void TellWait(int rank);

  struct Opened {
    int rank;
    std::weak_ptr<Connection> connection;
  };
  std::mutex mutex_;
  std::vector<Opened> connections_;
  bool stopped_ = false;
  std::condition_variable changed_;
  std::mutex waits_mutex_;
  std::thread watch_;
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_NCCL_BACKEND_H_
