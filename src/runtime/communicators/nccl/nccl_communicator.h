/*!
 * \file runtime/communicators/nccl/nccl_communicator.h
 * \brief One worker's endpoint of the NCCL backend: the collectives themselves.
 *
 * NCCL's collectives work on blocks that lie one after the other. Along any other dimension than
 * the outermost a block is strided, so it is packed before and unpacked after, by two-dimensional
 * copies on the device. Nothing waits on the host but Join, OpenPartition and Synchronize.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_NCCL_NCCL_COMMUNICATOR_H_
#define DISTIR_RUNTIME_COMMUNICATORS_NCCL_NCCL_COMMUNICATOR_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/nccl/devices/device_lock.h"
#include "runtime/communicators/nccl/devices/staging.h"
#include "runtime/communicators/nccl/devices/worker_stream.h"
#include "runtime/communicators/nccl/nccl_backend.h"

namespace distir::runtime::nccl {

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclBackend> backend, int rank);
  ~NcclCommunicator() override;

  std::string MakeAddress() final;
  void Join(const std::string& address) final;
  void OpenPartition(const std::vector<std::vector<int>>& groups) final;
  std::unique_ptr<Group> OpenGroup(std::vector<int> ranks, int position) final;
  void AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) final;
  void AllGather(Group* group, TensorView x, int dim, TensorView out) final;
  void ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind, TensorView out) final;
  void AllToAll(Group* group, TensorView x, int split_dim, int concat_dim, TensorView out) final;
  void Slice(const Group& group, TensorView x, int dim, TensorView out) final;
  void Transfer(const TransferPlan& plan, const TensorView* x, const TensorView* out) final;
  void FillGaps(const SegmentPlan& plan, TensorView out) final;
  tvm::ffi::Tensor ToDevice(const tvm::ffi::Tensor& tensor) final;
  tvm::ffi::Tensor ToHost(const tvm::ffi::Tensor& tensor) final;
  void Synchronize() final;

 private:
  /*! \throws RuntimeError if the group was not opened. */
  Connection* Find(Group* group);
  /*! \brief Waits for what is enqueued, until it fails or takes too long. */
  void WaitForDevice(Stream stream);
  /*! \brief One look of a wait: throws if it is over, otherwise lets some time pass. */
  class Wait;

  const std::shared_ptr<NcclBackend> backend_;
  const int rank_;
  std::unique_ptr<DeviceLock> lock_;
  const std::shared_ptr<const WorkerStream> stream_;
  Staging staging_;
  std::vector<int> all_ranks_;
  std::shared_ptr<Connection> everybody_;
  std::set<std::vector<std::vector<int>>> partitions_;
  std::map<std::vector<int>, Connection*> open_;          // groups of this worker
  std::vector<std::shared_ptr<Connection>> connections_;  // in the order in which they were opened
};

}  // namespace distir::runtime::nccl

#endif  // DISTIR_RUNTIME_COMMUNICATORS_NCCL_NCCL_COMMUNICATOR_H_
