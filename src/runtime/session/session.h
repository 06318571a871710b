/*!
 * \file runtime/session/session.h
 * \brief Session of workers (TVM's disco): the order of its steps, and its end.
 *
 * Disco's workers end the process when anything they run throws, so the only function that disco
 * ever calls on a worker is distir.runtime.guarded_call(session id, step): it runs the worker's
 * part of the job and turns whatever is thrown into the session's failure.
 *
 * Example (Python holds the same objects):
 * \code
 *   session = distir.runtime.session_open("threads", device_ids={0, 1}, "cpu")
 *   job = distir.runtime.session_submit(session, "main", {f0, f1}, {{x0}, {x1}})
 *   distir.runtime.job_wait(job, 1.0); distir.runtime.job_results(job)
 *   distir.runtime.session_close(session)
 * \endcode
 */
#ifndef DISTIR_RUNTIME_SESSION_SESSION_H_
#define DISTIR_RUNTIME_SESSION_SESSION_H_

#include <sys/types.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>

#include <memory>
#include <mutex>

#include "runtime/session/job.h"
#include "runtime/session/session_state.h"

namespace distir::runtime {

/*! \brief Relation of a job to jobs that were submitted before. */
struct QueuedBehind {
  using Jobs = tvm::ffi::Array<tvm::ffi::Optional<tvm::ffi::ObjectRef>>;

  /*! \brief The first job of the call of a function that it is part of; none: itself. */
  tvm::ffi::Optional<tvm::ffi::ObjectRef> call;
  /*! \brief Per rank, or empty: see JobObj::continues. */
  Jobs continues;
  /*! \brief Ranks: see JobObj::keeps. */
  tvm::ffi::Shape keeps;
  /*! \brief Per rank, or empty: see JobObj::after. */
  Jobs after;
  /*! \brief Ranks. */
  tvm::ffi::Shape finishers;
};

class SessionObj : public tvm::ffi::Object {
 public:
  /*!
   * \brief Starts the workers.
   * \throws ValueError for unsorted or repeated device ids, or an unknown backend.
   * \throws RuntimeError if TVM lacks a disco function that is needed.
   */
  SessionObj(const tvm::ffi::String& workers, const tvm::ffi::Shape& device_ids,
             const tvm::ffi::String& ccl);
  ~SessionObj();

  /*!
   * \brief Queues a job on all workers.
   * \throws RuntimeError if the session is closed.
   */
  tvm::ffi::ObjectPtr<JobObj> Submit(
      const tvm::ffi::String& name,
      const tvm::ffi::Array<tvm::ffi::Optional<tvm::ffi::Function>>& functions,
      const tvm::ffi::Array<tvm::ffi::Array<tvm::ffi::Any>>& arguments, const QueuedBehind& queued);

  /*! \brief Ends and joins the workers; they finish what is queued first. Idempotent. In a fork of
   * the process nothing happens. */
  void Close();

  /*! \brief Number of workers that are not done with a job and do not wait for others. */
  int NumRunning(const JobObj& job) const;

  /*!
   * \brief Ends the session because a job takes too long; the failure names a worker that is not
   *        done, one that waits for others only if all do.
   */
  void FailStalled(const JobObj& job, const std::string& why);

  /*! \brief Closes the session without waiting for its workers, which end when what they run does.
   */
  void Abandon();

  /*!
   * \brief Refuses what a worker of the session asks for, and would wait for itself.
   * \throws RuntimeError if this is a thread of one; names the action.
   */
  void CheckNotOwnWorker(const char* action) const;

  SessionState& state() { return *state_; }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("distir.runtime.Session", SessionObj, tvm::ffi::Object);

 private:
  // The session's first member is released last, after what refers to it.
  struct Disco {
    tvm::ffi::Any session;
    tvm::ffi::Any guarded_call;
    tvm::ffi::Any leave;
  };

  /*! \brief True if this process is a fork of the one that has the workers. */
  bool IsFork() const;
  bool IsOwnWorker() const;

  const pid_t owner_;
  std::shared_ptr<SessionState> state_;
  // Disco's controller side is not thread safe, and all workers must see the same order of steps.
  std::mutex mutex_;
  std::unique_ptr<Disco> disco_;  // nullptr once the session is closed
  int64_t next_step_ = 1;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_SESSION_H_
