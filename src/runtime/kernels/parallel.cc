// Runs the parts of a kernel by TVM's threads.
#include "runtime/kernels/parallel.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

namespace distir::runtime {

namespace {

// Below so many multiplications a second thread costs more than it saves.
constexpr double kWorkForThreads = 1 << 20;

// The signatures are those of TVM's C API (tvm/runtime/c_backend_api.h).
struct ParallelGroup {
  void* sync_handle;
  int32_t num_task;
};
using ParallelTask = int (*)(int task, ParallelGroup* group, void* data);
using ParallelLaunch = int (*)(ParallelTask task, void* data, int num_task);

ParallelLaunch FindParallelLaunch() {
  static const auto launch =
      reinterpret_cast<ParallelLaunch>(dlsym(RTLD_DEFAULT, "TVMBackendParallelLaunch"));
  return launch;
}

using Run = std::function<void(int64_t, int64_t)>;

}  // namespace

void RunInParts(double operations, const Run& run) {
  const ParallelLaunch launch = FindParallelLaunch();
  if (operations < kWorkForThreads || launch == nullptr) return run(0, 1);
  const auto task = [](int task, ParallelGroup* group, void* data) {
    (*static_cast<const Run*>(data))(task, group->num_task);
    return 0;
  };
  if (launch(task, const_cast<Run*>(&run), 0) != 0)
    TVM_FFI_THROW(InternalError) << "a kernel has no threads";
}

}  // namespace distir::runtime
