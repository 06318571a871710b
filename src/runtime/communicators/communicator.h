/*!
 * \file runtime/communicators/communicator.h
 * \brief Interface of communication backends: collectives over groups of workers.
 *
 * A Backend belongs to one session and connects each of its workers once; the worker then owns its
 * Communicator. The backends are threads of one process (cpu/threads/thread_backend.h), processes
 * (cpu/processes/process_backend.h: one object per process, which connects its own worker only),
 * GPUs of threads or processes (nccl/nccl_backend.h), and MPI between hosts (mpi/mpi_backend.h).
 * Another one implements the same two classes and registers a factory under its name.
 *
 * Contract of every collective:
 *  - all members of a group call it in the same order with the same arguments (`group.position`
 *    and the tensors differ, dtypes and shapes do not); a mismatch is an error on all of them;
 *  - tensors are row-major, in memory of the worker's device, and outputs have their final shape;
 *  - results are bitwise equal on all members;
 *  - on a GPU it is enqueued, in the order of the device's current stream;
 *  - after Backend::Abort, calls that wait and later calls throw, on every worker.
 *
 * Example, worker of rank 2 of a session of 4:
 * \code
 *   auto communicator = backend->Connect(2);
 *   communicator->Join(address);              // which one of the workers has made
 *   communicator->OpenPartition({{0, 1}, {2, 3}});
 *   auto group = communicator->OpenGroup({2, 3}, 0);
 *   communicator->AllReduce(group.get(), x, ReduceKind::kSum, out);  // with the worker of rank 3
 * \endcode
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_COMMUNICATOR_H_
#define DISTIR_RUNTIME_COMMUNICATORS_COMMUNICATOR_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/communicators/library_collectives.h"
#include "runtime/communicators/message_carrier.h"
#include "runtime/communicators/result_memory.h"
#include "runtime/kernels/reduce.h"
#include "runtime/plan/transfer_plan.h"

namespace distir::runtime {

/*! \brief An ordered set of workers that communicate, as one of its members sees it. */
class Group {
 public:
  Group(std::vector<int> ranks, int position) : ranks(std::move(ranks)), position(position) {}
  virtual ~Group() = default;

  int size() const { return static_cast<int>(ranks.size()); }

  /*! \brief Ranks in the session, in collective order. */
  const std::vector<int> ranks;
  /*! \brief The calling worker's index in `ranks`. */
  const int position;
};

struct SegmentPlan;

/*! \brief One worker's endpoint. Used by that worker's thread only. */
class Communicator {
 public:
  using TensorView = tvm::ffi::TensorView;

  virtual ~Communicator() = default;

  /*! \brief Address by which all workers find each other, made by one of them; it may be empty. */
  virtual std::string MakeAddress() { return ""; }

  /*!
   * \brief Finds the other workers; all of them call it once, with one address. A backend that
   *        needs it waits for all.
   */
  virtual void Join(const std::string& /*address*/) {}

  /*!
   * \brief Opens disjoint groups. All workers of the session call it, in the same order, whether
   *        or not they are in a group; a backend that needs it waits for all. A second time it does
   *        nothing.
   * \param groups Ranks in collective order.
   */
  virtual void OpenPartition(const std::vector<std::vector<int>>& /*groups*/) {}

  /*! \brief Makes the group known to the backend; called once per group and worker. */
  virtual std::unique_ptr<Group> OpenGroup(std::vector<int> ranks, int position) = 0;

  /*! \brief True if collectives are quicker on tensors of NewTensor than on others. */
  virtual bool PrefersNewTensors() const { return false; }
  /*! \brief Host memory that other workers can see if any can, for operands and results. */
  virtual tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype);

  /*!
   * \brief Host memory for the result of the group's next collective, an all-reduce or an
   *        all-gather, to be given to it as `out`. Members may get the same memory, so nobody
   *        writes to it afterwards.
   */
  virtual tvm::ffi::Tensor SharedResult(Group*, tvm::ffi::ShapeView shape, DLDataType dtype) {
    return NewTensor(shape, dtype);
  }

  /*! \brief out = reduction of all members' x; same shape. */
  virtual void AllReduce(Group* group, TensorView x, ReduceKind kind, TensorView out) = 0;

  /*! \brief out = concatenation of all members' x along `dim`, in group order. */
  virtual void AllGather(Group* group, TensorView x, int dim, TensorView out) = 0;

  /*! \brief out = block [position] of `dim` of the reduction of all members' x. */
  virtual void ReduceScatter(Group* group, TensorView x, int dim, ReduceKind kind,
                             TensorView out) = 0;

  /*!
   * \brief x is cut into group-size blocks along `split_dim`, block j goes to position j; out is
   *        the concatenation of what was received along `concat_dim`, in group order.
   */
  virtual void AllToAll(Group* group, TensorView x, int split_dim, int concat_dim,
                        TensorView out) = 0;

  /*! \brief out = block [position] of `dim` of x. No communication. */
  virtual void Slice(const Group& group, TensorView x, int dim, TensorView out) = 0;

  /*!
   * \brief Sends this worker's pieces of `x` and receives its pieces of `out`, as the plan says.
   * \param x The local source tensor; nullptr on workers that only receive.
   * \param out The local target tensor; nullptr on workers that only send.
   */
  virtual void Transfer(const TransferPlan& plan, const TensorView* x, const TensorView* out) = 0;

  /*! \brief Writes the fill value of a plan where no piece of it goes; before its transfer. */
  virtual void FillGaps(const SegmentPlan& plan, TensorView out);

  /*!
   * \brief A tensor where this worker's tensors lie, with what one of the host or of this worker
   *        has; that one may be changed when it returns. On backends of the host, the same tensor.
   */
  virtual tvm::ffi::Tensor ToDevice(const tvm::ffi::Tensor& tensor) { return tensor; }

  /*!
   * \brief A tensor of the host with what one of this worker has, once all that was enqueued is
   *        done. On backends of the host, the tensor itself.
   */
  virtual tvm::ffi::Tensor ToHost(const tvm::ffi::Tensor& tensor) { return tensor; }

  /*! \brief Bytes sent to other hosts, if the backend sends messages (transport.h). */
  virtual int64_t bytes_to_hosts() const { return 0; }

  /*! \brief Waits until all that was enqueued is done. \throws RuntimeError if any of it failed. */
  virtual void Synchronize() {}

  /*!
   * \brief The call of a function that the worker's step is part of: a number that all workers have
   *        for it. A transfer between meshes stays within a call, whose parts may be
   *        several steps.
   */
  int64_t call() const { return call_; }
  void CallBegins(int64_t call) { call_ = call; }

 private:
  int64_t call_ = 0;
  std::shared_ptr<ResultMemory> own_results_;
};

/*! \brief State that the workers of one session share. Thread safe. */
class Backend {
 public:
  virtual ~Backend() = default;

  /*! \brief The endpoint of one worker; called once per rank, on the worker's thread. */
  virtual std::unique_ptr<Communicator> Connect(int rank) = 0;

  /*! \brief Device of a worker's tensors. */
  virtual DLDevice DeviceOf(int /*rank*/) const { return {kDLCPU, 0}; }

  /*! \brief Makes every call that waits, and every later call, throw. Idempotent. */
  virtual void Abort() noexcept = 0;

  /*!
   * \brief Carrier of messages from a worker process to those of other hosts; null if the backend
   *        has none: then sockets carry them, if it takes messages at all.
   * \param memory Memory that messages lie in.
   */
  virtual std::unique_ptr<MessageCarrier> Carrier(int /*rank*/, std::shared_ptr<void> /*memory*/) {
    return nullptr;
  }
  /*! \brief The collectives that it has itself, where it carries messages; null if it has none. */
  virtual std::unique_ptr<LibraryCollectives> Collectives(int /*rank*/) { return nullptr; }

  /*!
   * \brief The worker begins (ends) a step: one program run by all workers of the session. Steps
   *        number upwards; a backend can use them to find collectives that can never complete.
   */
  virtual void StepBegins(int rank, int64_t step) noexcept = 0;
  virtual void StepEnds(int rank, int64_t step) noexcept = 0;

  /*!
   * \brief Call that a worker waits in: "all_reduce over devices [0, 1]". Empty if it does not
   *        wait, or the backend does not know. Called by the controller.
   */
  virtual std::string WaitOf(int) const { return ""; }

  /*! \brief Gives back what was kept for the workers. Called when they have ended. */
  virtual void WorkersEnded() noexcept {}
};

/*! \brief The workers of a session, and which of them a backend connects. */
struct WorkerSet {
  /*! \brief The device id of each rank, for messages. */
  std::vector<int> device_ids;
  /*! \brief The workers of this host, ascending. */
  std::vector<int> ranks_here;
  /*! \brief The only worker of this process; -1 if all are threads of it. */
  int own_rank = -1;
  /*! \brief True if a worker of another process has failed; not set if there is none. */
  std::function<bool()> aborted;
  /*! \brief Host number of each worker, by rank. */
  std::vector<int> host_of;
  /*! \brief Names the session, on all of its hosts. */
  std::string session;
  /*! \brief True if sums have the bits that they have on threads of one host. */
  bool bitwise = true;
  /*! \brief Told, in a process, what its worker waits for on the host; empty when it ends. */
  std::function<void(const std::string&)> waits_for;
};

/*! \brief Workers that are threads of this process. */
WorkerSet ThreadsOf(std::vector<int> device_ids);

/*! \brief Makes a backend for workers of a session. */
using BackendFactory = std::shared_ptr<Backend> (*)(WorkerSet workers);

/*! \brief Registers a factory; the returned bool lets a static initialise from it. */
bool RegisterBackend(const std::string& name, BackendFactory factory);

/*! \brief Names of the registered backends, sorted. */
std::vector<std::string> BackendNames();

/*! \brief Makes a backend. \throws ValueError if there is none of this name, naming those known. */
std::shared_ptr<Backend> MakeBackend(const std::string& name, WorkerSet workers);

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_COMMUNICATORS_COMMUNICATOR_H_
