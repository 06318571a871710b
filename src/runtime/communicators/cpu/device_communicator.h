/*!
 * \file runtime/communicators/cpu/device_communicator.h
 * \brief Runs collectives on GPU tensors through a communicator for host memory.
 *
 * A collective waits for the worker's GPU, copies its operand to host memory, has the collective
 * done there, and copies the result back: kernels that the worker enqueues next see it. A library
 * that takes memory of GPUs (library_collectives.h) is given that instead, for the collectives that
 * it would be given on the host. Slices stay on the GPU.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_DEVICE_COMMUNICATOR_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_DEVICE_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/worker_device.h"

namespace distir::runtime::cpu {

class DeviceCommunicator : public Communicator {
 public:
  /*!
   * \param host Has the collectives that these are made of.
   * \param library Library that `host` gives collectives to; null if there is none.
   * \param wait The worker's wait for anything.
   */
  DeviceCommunicator(std::unique_ptr<Communicator> host, std::unique_ptr<WorkerDevice> device,
                     std::unique_ptr<LibraryCollectives> library, WaitUntil wait, int rank,
                     std::vector<int> device_ids)
      : host_(std::move(host)),
        device_(std::move(device)),
        library_(std::move(library)),
        wait_(std::move(wait)),
        rank_(rank),
        device_ids_(std::move(device_ids)) {}

  std::string MakeAddress() final { return host_->MakeAddress(); }
  void Join(const std::string& address) final;
  void OpenPartition(const std::vector<std::vector<int>>& groups) final {
    host_->OpenPartition(groups);
  }
  std::unique_ptr<Group> OpenGroup(std::vector<int> ranks, int position) final {
    return host_->OpenGroup(std::move(ranks), position);
  }
  void AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) final;
  void AllGather(Group* group, TensorView x, int dim, TensorView out) final;
  void ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind, TensorView out) final;
  void AllToAll(Group* group, TensorView x, int split_dim, int concat_dim, TensorView out) final;
  void Slice(const Group& group, TensorView x, int dim, TensorView out) final;
  void Transfer(const TransferPlan& plan, const TensorView* x, const TensorView* out) final;
  void FillGaps(const SegmentPlan& plan, TensorView out) final;
  tvm::ffi::Tensor ToDevice(const tvm::ffi::Tensor& tensor) final {
    return device_->ToDevice(tensor);
  }
  tvm::ffi::Tensor ToHost(const tvm::ffi::Tensor& tensor) final { return device_->ToHost(tensor); }
  int64_t bytes_to_hosts() const final { return host_->bytes_to_hosts() + library_bytes_; }
  void Synchronize() final { device_->Wait(); }

 private:
  template <typename Collective>
  void OnHost(const TensorView& x, const TensorView& out, Collective collective);
  template <typename MakePacked>
  bool ByLibrary(Group* group, const char* operation, const TensorView& x, const LibraryCall& call,
                 int64_t argument0, int64_t argument1, MakePacked make_packed);
  void Agree(Group* group, const char* operation, const TensorView& x, int64_t argument0,
             int64_t argument1);
  tvm::ffi::Tensor Download(const TensorView& tensor);
  void Upload(const tvm::ffi::Tensor& from, const TensorView& to);

  const std::unique_ptr<Communicator> host_;
  const std::unique_ptr<WorkerDevice> device_;
  const std::unique_ptr<LibraryCollectives> library_;
  const WaitUntil wait_;
  const int rank_;
  const std::vector<int> device_ids_;
  bool library_takes_device_memory_ = false;  // of all workers
  int64_t library_bytes_ = 0;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_DEVICE_COMMUNICATOR_H_
