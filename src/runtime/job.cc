#include "runtime/job.h"

#include <tvm/ffi/reflection/registry.h>

#include <chrono>

namespace distir::runtime {

namespace ffi = tvm::ffi;

void JobObj::WorkerDone(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  done_.insert(rank);
  if (done_.size() == functions.size()) all_done_.notify_all();
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

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::ObjectDef<JobObj>();
  refl::GlobalDef()
      .def("distir.runtime.job_wait",
           [](const ffi::ObjectPtr<JobObj>& job, double seconds) { return job->Wait(seconds); })
      .def("distir.runtime.job_results", [](const ffi::ObjectPtr<JobObj>& job) {
        return ffi::Array<ffi::Any>(job->results.begin(), job->results.end());
      });
}

}  // namespace distir::runtime
