/*!
 * \file runtime/communicators/mpi/mpi_communicator.h
 * \brief One worker's endpoint: collectives of MPI where they are its kind, messages otherwise.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_MPI_MPI_COMMUNICATOR_H_
#define DISTIR_RUNTIME_COMMUNICATORS_MPI_MPI_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/mpi/exchange.h"

namespace distir::runtime::mpi {

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Exchange> exchange, int rank, const WorkerSet& workers,
                  std::unique_ptr<Communicator> messages);

  void Join(const std::string& address) final;
  std::unique_ptr<Group> OpenGroup(std::vector<int> ranks, int position) final {
    return messages_->OpenGroup(std::move(ranks), position);
  }
  bool PrefersNewTensors() const final { return messages_->PrefersNewTensors(); }
  tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) final {
    return messages_->NewTensor(shape, dtype);
  }
  void AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) final {
    messages_->AllReduce(group, x, kind, out);
  }
  void AllGather(Group* group, TensorView x, int dim, TensorView out) final {
    messages_->AllGather(group, x, dim, out);
  }
  void ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind, TensorView out) final {
    messages_->ReduceScatter(group, x, dim, kind, out);
  }
  void AllToAll(Group* group, TensorView x, int split_dim, int concat_dim, TensorView out) final {
    messages_->AllToAll(group, x, split_dim, concat_dim, out);
  }
  void Slice(const Group& group, TensorView x, int dim, TensorView out) final {
    messages_->Slice(group, x, dim, out);
  }
  int64_t bytes_to_hosts() const final { return messages_->bytes_to_hosts(); }
  void Transfer(const TransferPlan& plan, const TensorView* x, const TensorView* out) final;

 private:
  const std::shared_ptr<Exchange> exchange_;
  const int rank_;
  const WorkerSet workers_;
  const std::unique_ptr<Communicator> messages_;
};

}  // namespace distir::runtime::mpi

#endif  // DISTIR_RUNTIME_COMMUNICATORS_MPI_MPI_COMMUNICATOR_H_
