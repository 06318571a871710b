// Holds one step of a session (functions, arguments, results); the controller can wait for it.
#include "runtime/session/job.h"

#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "support/functions.h"

namespace distir::runtime {

namespace ffi = tvm::ffi;

double Now() {
  const auto since_epoch = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_epoch).count();
}

ffi::Array<ffi::Any> JobObj::TakeKept(int rank) {
  // Nothing, if the step has failed.
  return std::exchange(results[rank], ffi::Any())
      .as<ffi::Array<ffi::Any>>()
      .value_or(ffi::Array<ffi::Any>());
}

void JobObj::WorkerDone(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  done_.insert(rank);
  // The controller wakes up once, not for every worker.
  if (done_.size() == functions.size()) all_done_.notify_all();
  if (num_waiting_for_some_ > 0) changed_.notify_all();
}

bool JobObj::Done(int rank) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_.count(rank) != 0;
}

bool JobObj::Wait(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return all_done_.wait_for(lock, std::chrono::duration<double>(seconds),
                            [this] { return done_.size() == functions.size(); });
}

bool JobObj::WaitFor(const std::vector<int>& ranks, double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++num_waiting_for_some_;
  const bool are_done = changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [this](int rank) { return done_.count(rank) != 0; });
  });
  --num_waiting_for_some_;
  return are_done;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<JobObj>();
  support::Functions()
      .def("distir.runtime.job_wait",
           [](const ffi::Arc<JobObj>& job, double seconds) { return job->Wait(seconds); })
      .def("distir.runtime.job_times",
           [](const ffi::Arc<JobObj>& job) {
             ffi::Array<ffi::Array<double>> times;
             for (const WorkTime& time : job->times)
               times.push_back({time.begin, time.received, time.end});
             return times;
           })
      .def("distir.runtime.job_results", [](const ffi::Arc<JobObj>& job) {
        ffi::Array<ffi::Any> results;
        for (size_t rank = 0; rank < job->results.size(); ++rank)
          results.push_back(job->keeps[rank] ? ffi::Any() : job->results[rank]);
        return results;
      });
}

}  // namespace distir::runtime
