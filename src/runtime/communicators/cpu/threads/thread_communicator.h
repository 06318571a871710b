/*!
 * \file runtime/communicators/cpu/threads/thread_communicator.h
 * \brief Runs the collectives of one worker thread, on buffers of the other threads in its group.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_THREAD_COMMUNICATOR_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_THREAD_COMMUNICATOR_H_

#include <memory>
#include <utility>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/cpu/threads/thread_backend.h"

namespace distir::runtime::cpu {

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadBackend> backend, int rank)
      : backend_(std::move(backend)), rank_(rank) {}

  std::unique_ptr<Group> OpenGroup(std::vector<int> ranks, int position) final;
  tvm::ffi::Tensor SharedResult(Group* group, tvm::ffi::ShapeView shape, DLDataType dtype) final;
  void AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) final;
  void AllGather(Group* group, TensorView x, int dim, TensorView out) final;
  void ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind, TensorView out) final;
  void AllToAll(Group* group, TensorView x, int split_dim, int concat_dim, TensorView out) final;
  void Slice(const Group& group, TensorView x, int dim, TensorView out) final;
  void Transfer(const TransferPlan& plan, const TensorView* x, const TensorView* out) final;

 private:
  template <typename Work>
  void Meet(Group* group, const char* operation, TensorView x, TensorView out, int64_t argument0,
            int64_t argument1, Work work);

  std::shared_ptr<ThreadBackend> backend_;
  int rank_;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_THREAD_COMMUNICATOR_H_
