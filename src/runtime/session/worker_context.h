/*!
 * \file runtime/session/worker_context.h
 * \brief Context of the current thread: session, rank, device, and resolved descriptors.
 *
 * A session's worker runs on one thread for as long as the session lives. Builtins are called by
 * compiled programs, which pass no context, so they find it here.
 *
 * Example, inside a builtin:
 * \code
 *   WorkerContext& worker = WorkerContext::Current();
 *   worker.communicator().AllReduce(worker.FindGroup("[[0,1]]"), x, kind, out);
 * \endcode
 */
#ifndef DISTIR_RUNTIME_SESSION_WORKER_CONTEXT_H_
#define DISTIR_RUNTIME_SESSION_WORKER_CONTEXT_H_

#include <tvm/ffi/string.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/plan/segment_plan.h"
#include "runtime/session/descriptors.h"
#include "runtime/session/donated_tensors.h"
#include "runtime/session/notes/profile.h"
#include "runtime/session/notes/traffic.h"

namespace distir::runtime {

class SessionState;

namespace cublaslt {
class LtProducts;
}

class WorkerContext {
 public:
  /*! \brief The context of this thread. \throws RuntimeError on threads that are not workers. */
  static WorkerContext& Current();
  /*! \brief The context of this thread, or nullptr. */
  static WorkerContext* CurrentOrNull();
  /*! \brief Makes this thread the worker `rank` of a session; a no-op if it already is. */
  static WorkerContext& Enter(const std::shared_ptr<SessionState>& session, int rank);

  /*!
   * \brief The worker of this thread gives back all it has. Not left to the end of the thread, when
   *        errors cannot be thrown any more: TVM's memory for their text is gone by then.
   */
  static void Leave();

  SessionState& session() { return *session_; }
  Communicator& communicator() { return *communicator_; }
  int rank() const { return rank_; }
  int device_id() const { return device_id_; }
  /*! \brief Device of this worker's tensors. */
  DLDevice memory() const { return memory_; }

  /*! \brief Opens groups together with all other workers; see Communicator::OpenPartition. */
  void OpenPartition(const tvm::ffi::String& groups);
  /*! \brief The group of this worker in `groups`; parsed once, then found by content. */
  Group* FindGroup(const tvm::ffi::String& groups);
  /*! \brief This worker's part of a transfer plan. */
  const TransferPlan& FindTransferPlan(const tvm::ffi::String& plan);
  /*! \brief This worker's part of a segment plan. */
  const SegmentPlan& FindSegmentPlan(const tvm::ffi::String& plan);

  /*! \brief Bytes that the worker has sent and received. */
  Traffic& traffic() { return traffic_; }

  /*! \brief Arguments whose memory results may take. */
  DonatedTensors& donated() { return donated_; }

  /*! \brief Recorder of the worker's operators; null while it is not profiled. */
  std::unique_ptr<Profile> profile;

  /*! \brief Time at which the last value came from another mesh, as WorkTime has it. */
  double received_at = 0;

 private:
  WorkerContext(std::shared_ptr<SessionState> session, int rank);
  RankOf MakeRankOf() const;

  std::shared_ptr<SessionState> session_;
  int rank_;
  int device_id_;
  DLDevice memory_;
  std::unique_ptr<Communicator> communicator_;
  std::unordered_map<std::string, std::unique_ptr<Group>> groups_;
  std::unordered_map<std::string, std::unique_ptr<TransferPlan>> plans_;
  std::unordered_map<std::string, std::unique_ptr<SegmentPlan>> segment_plans_;
  Traffic traffic_;
  DonatedTensors donated_;

 public:
  /*! \brief Products of matrices on the worker's GPU; null until there is one. It ends before the
   * communicator, whose stream it uses. */
  std::shared_ptr<cublaslt::LtProducts> products;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_WORKER_CONTEXT_H_
