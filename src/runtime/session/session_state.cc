// Shares devices, backend and first failure between controller and workers.
#include "runtime/session/session_state.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/kernels/format_list.h"

namespace distir::runtime {

namespace {

struct SessionTable {
  std::mutex mutex;
  std::map<int64_t, std::weak_ptr<SessionState>> sessions;
  int64_t next_id = 1;
};

SessionTable& Table() {
  // Never destroyed: workers of a session that outlives main may still look themselves up.
  static SessionTable* table = new SessionTable();
  return *table;
}

int64_t NewId() {
  std::lock_guard<std::mutex> lock(Table().mutex);
  return Table().next_id++;
}

}  // namespace

SessionState::SessionState(std::vector<int> device_ids, const std::string& ccl)
    : id_(NewId()),
      device_ids_(std::move(device_ids)),
      backend_(MakeBackend(ccl, ThreadsOf(device_ids_))),
      own_names_(std::make_unique<SharedText[]>(device_ids_.size())) {
  for (size_t rank = 0; rank < device_ids_.size(); ++rank)
    operator_names_.push_back(&own_names_[rank]);
}

SessionState::SessionState(std::vector<int> device_ids, std::shared_ptr<Backend> backend,
                           std::vector<SharedText*> operator_names)
    : id_(NewId()),
      device_ids_(std::move(device_ids)),
      backend_(std::move(backend)),
      operator_names_(std::move(operator_names)) {}

SessionState::~SessionState() {
  std::lock_guard<std::mutex> lock(Table().mutex);
  Table().sessions.erase(id_);
}

std::shared_ptr<SessionState> SessionState::Find(int64_t id) {
  std::lock_guard<std::mutex> lock(Table().mutex);
  auto found = Table().sessions.find(id);
  return found == Table().sessions.end() ? nullptr : found->second.lock();
}

void SessionState::Register(const std::shared_ptr<SessionState>& session) {
  std::lock_guard<std::mutex> lock(Table().mutex);
  Table().sessions[session->id_] = session;
}

int SessionState::RankOf(int64_t device_id) const {
  auto found = std::lower_bound(device_ids_.begin(), device_ids_.end(), device_id);
  if (found == device_ids_.end() || *found != device_id) {
    TVM_FFI_THROW(ValueError) << "device " << device_id << " is not in the session, which has "
                              << FormatList(device_ids_);
  }
  return static_cast<int>(found - device_ids_.begin());
}

void SessionState::AddJob(const tvm::ffi::ObjectPtr<JobObj>& job) {
  std::lock_guard<std::mutex> lock(mutex_);
  jobs_[job->step].job = job;
}

tvm::ffi::ObjectPtr<JobObj> SessionState::FetchJob(int64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = jobs_.find(step);
  if (found == jobs_.end()) return nullptr;
  tvm::ffi::ObjectPtr<JobObj> job = found->second.job;
  if (++found->second.num_fetched == num_workers()) jobs_.erase(found);
  return job;
}

void SessionState::Fail(Failure failure) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.has_value()) return;
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
  }
  backend_->Abort();
}

std::optional<Failure> SessionState::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

}  // namespace distir::runtime
