/*!
 * \file runtime/session/job.h
 * \brief One step of a session: a function and arguments for each worker, and the results.
 *
 * Disco's queue carries numbers only; the job itself is handed over inside the process. The
 * controller waits on it, workers fill in their results.
 */
#ifndef DISTIR_RUNTIME_SESSION_JOB_H_
#define DISTIR_RUNTIME_SESSION_JOB_H_

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace distir::runtime {

/*! \brief Times of a worker's part of a job, in seconds of the steady clock. */
struct WorkTime {
  double begin = 0;
  double received = 0;  // when the last value came from another mesh; `begin` where none did
  double end = 0;
};

/*! \brief Seconds of the steady clock, which is one for all threads. */
double Now();

class JobObj : public tvm::ffi::Object {
 public:
  /*! \brief Number of the step in its session; steps run in this order on every worker. */
  int64_t step = 0;
  /*! \brief Number of the first step of the call of a function that this is part of. */
  int64_t call = 0;
  /*! \brief Name in messages: that of the function. */
  std::string name;
  /*! \brief Per rank; a worker whose function is not defined has nothing to do. */
  std::vector<tvm::ffi::Optional<tvm::ffi::Function>> functions;
  std::vector<tvm::ffi::Array<tvm::ffi::Any>> arguments;
  std::vector<tvm::ffi::Any> results;
  std::vector<WorkTime> times;
  /*! \brief Per rank whether what its function returns, an array, is not a result but for the job
   * that continues this one. */
  std::vector<bool> keeps;
  /*! \brief Per rank an earlier job: what it has kept are further arguments; null: none. */
  std::vector<tvm::ffi::ObjectPtr<JobObj>> continues;
  /*! \brief Per rank an earlier job that `finishers` must be done with before the worker begins;
   * null: it begins at once. */
  std::vector<tvm::ffi::ObjectPtr<JobObj>> after;
  /*! \brief Ranks. */
  std::vector<int> finishers;

  /*! \brief Takes the objects that the worker has kept. Called by the worker itself. */
  tvm::ffi::Array<tvm::ffi::Any> TakeKept(int rank);
  /*! \brief Called by each worker once, after it has written its result. */
  void WorkerDone(int rank);
  /*! \brief True if a worker is done. */
  bool Done(int rank) const;
  /*! \brief Waits until the workers of these ranks are done. \return True if they are. */
  bool WaitFor(const std::vector<int>& ranks, double seconds);
  /*! \brief Waits until all workers are done. \return True if they are. */
  bool Wait(double seconds);

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("distir.runtime.Job", JobObj, tvm::ffi::Object);

 private:
  mutable std::mutex mutex_;
  std::condition_variable all_done_;
  std::condition_variable changed_;
  int num_waiting_for_some_ = 0;
  std::set<int> done_;
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_SESSION_JOB_H_
