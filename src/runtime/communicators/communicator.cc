// Registers communication backends, and defines the defaults that they share.
#include "runtime/communicators/communicator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "runtime/plan/segment_plan.h"
#include "support/error.h"

namespace distir::runtime {

namespace {

// A function-local static: backends register while libraries are loaded, in any order.
std::map<std::string, BackendFactory>& Backends() {
  static std::map<std::string, BackendFactory> backends;
  return backends;
}

}  // namespace

tvm::ffi::Tensor Communicator::NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) {
  if (own_results_ == nullptr) own_results_ = std::make_shared<ResultMemory>();
  return own_results_->NewTensor(shape, dtype);
}

void Communicator::FillGaps(const SegmentPlan& plan, TensorView out) {
  runtime::FillGaps(plan, out);
}

WorkerSet ThreadsOf(std::vector<int> device_ids) {
  std::vector<int> ranks(device_ids.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  WorkerSet workers;
  workers.device_ids = std::move(device_ids);
  workers.ranks_here = std::move(ranks);
  return workers;
}

bool RegisterBackend(const std::string& name, BackendFactory factory) {
  Backends()[name] = factory;
  return true;
}

std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const auto& entry : Backends()) names.push_back(entry.first);
  return names;
}

std::shared_ptr<Backend> MakeBackend(const std::string& name, WorkerSet workers) {
  auto found = Backends().find(name);
  if (found == Backends().end()) {
    TVM_FFI_THROW(ValueError) << "there is no communication library \"" << name
                              << "\"; this build has " << support::Listed(BackendNames());
  }
  return found->second(std::move(workers));
}

}  // namespace distir::runtime
