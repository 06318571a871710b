/*!
 * \file runtime/session/session_state.h
 * \brief Shared state of one session's controller and workers: devices, backend, first failure.
 *
 * The first failure wins: it is recorded once, the backend is aborted, and whatever the other
 * workers raise while they unwind is a consequence and not reported.
 */
#ifndef DISTIR_RUNTIME_SESSION_SESSION_STATE_H_
#define DISTIR_RUNTIME_SESSION_SESSION_STATE_H_

#include <tvm/ffi/object.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/session/job.h"
#include "runtime/session/notes/shared_text.h"

namespace distir::runtime {

/*! \brief Reason why a session cannot go on. */
struct Failure {
  int rank;               // -1 if the controller ended the session
  std::string function;   // what the controller asked for
  std::string operation;  // the operator that ran, empty if none did
  std::string kind;       // of the error, "ValueError"
  std::string message;
  std::string backtrace;
};

class SessionState {
 public:
  /*!
   * \param device_ids The device of each rank, ascending.
   * \param ccl Name of the communication backend.
   */
  SessionState(std::vector<int> device_ids, const std::string& ccl);
  /*!
   * \brief The state of one worker that is a process.
   * \param operator_names Names of what each worker runs; in memory that outlives this object.
   */
  SessionState(std::vector<int> device_ids, std::shared_ptr<Backend> backend,
               std::vector<SharedText*> operator_names);
  ~SessionState();

  /*! \brief The session of an id, or nullptr once it is gone. */
  static std::shared_ptr<SessionState> Find(int64_t id);
  /*! \brief Makes Find return this session. */
  static void Register(const std::shared_ptr<SessionState>& session);

  int64_t id() const { return id_; }
  int num_workers() const { return static_cast<int>(device_ids_.size()); }
  const std::vector<int>& device_ids() const { return device_ids_; }
  Backend& backend() { return *backend_; }
  /*! \brief The operator that a worker runs or has run last; empty before the first of a step. */
  SharedText& operator_name(int rank) { return *operator_names_[rank]; }

  /*! \brief Rank of a device. \throws ValueError if the session lacks it. */
  int RankOf(int64_t device_id) const;

  /*! \brief Keeps a job findable by its step until all workers have fetched it. */
  void AddJob(const tvm::ffi::ObjectPtr<JobObj>& job);
  /*! \brief Called by each worker once per step. */
  tvm::ffi::ObjectPtr<JobObj> FetchJob(int64_t step);

  /*! \brief Records the failure if it is the first one, and ends all communication. */
  void Fail(Failure failure);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /*! \brief The first failure. */
  std::optional<Failure> failure() const;

 private:
  const int64_t id_;
  const std::vector<int> device_ids_;
  const std::shared_ptr<Backend> backend_;
  const std::unique_ptr<SharedText[]> own_names_;  // of workers that are threads
  std::vector<SharedText*> operator_names_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  struct PendingJob {
    tvm::ffi::ObjectPtr<JobObj> job;
    int num_fetched = 0;
  };
  std::map<int64_t, PendingJob> jobs_;
  std::atomic<bool> failed_{false};
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_SESSION_STATE_H_
