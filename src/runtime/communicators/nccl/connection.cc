// Owns one NCCL communicator, which another thread may abort.
#include "runtime/communicators/nccl/connection.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/communicators/nccl/library.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

// Time that a worker that frees a connection waits for the thread that ends it. A longer wait is
// for something that does not come.
constexpr std::chrono::seconds kEndPatience{10};

// Interval at which a thread that waits for a communicator checks for failures of other workers.
constexpr std::chrono::milliseconds kLook{20};

/*! \brief State shared by the thread that makes a communicator and the one that waits for it. */
struct Making {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  bool given_up = false;
  int cuda_result = kCudaSuccess;
  int result = kNcclSuccess;
  Comm comm = nullptr;
};

void Make(Making* making, int device, const std::function<int(Comm*)>& make) {
  Comm comm = nullptr;
  const int cuda_result = Cuda().cudaSetDevice(device);
  const int result = cuda_result == kCudaSuccess ? make(&comm) : kNcclSuccess;
  std::lock_guard<std::mutex> lock(making->mutex);
  if (making->given_up && comm != nullptr) {
    Nccl().ncclCommAbort(comm);
    comm = nullptr;
  }
  making->cuda_result = cuda_result;
  making->result = result;
  making->comm = comm;
  making->done = true;
  making->changed.notify_all();
}

}  // namespace

Comm MakeComm(int device, const std::string& what, const Patience& patience,
              std::function<int(Comm*)> make) {
  auto making = std::make_shared<Making>();
  std::thread([making, device, make = std::move(make)] {
    Make(making.get(), device, make);
  }).detach();
  const auto begin = std::chrono::steady_clock::now();
  auto late = [&] {
    return patience.timeout.count() != 0 &&
           std::chrono::steady_clock::now() - begin > patience.timeout;
  };
  std::unique_lock<std::mutex> lock(making->mutex);
  while (!making->changed.wait_for(lock, kLook, [&] { return making->done; })) {
    const bool aborted = patience.aborted();
    if (!aborted && !late()) continue;
    making->given_up = true;
    DISTIR_REQUIRE(!aborted, RuntimeError) << what << " stopped because another worker failed";
    TVM_FFI_THROW(RuntimeError) << what << " did not end within "
                                << static_cast<double>(patience.timeout.count()) / 1000 << " s";
  }
  CheckCuda(making->cuda_result, "cudaSetDevice");
  DISTIR_REQUIRE(making->result == kNcclSuccess || !patience.aborted(), RuntimeError)
      << what << " stopped because another worker failed";
  CheckNccl(making->result, what);
  return making->comm;
}

Connection::Connection(Comm comm, std::string description)
    : comm_(comm), description_(std::move(description)) {}

void Connection::CheckHealth(const char* operation) {
  CheckNotEnded(operation);
  const std::lock_guard<std::mutex> lock(inside_);
  Check(operation);
}

std::chrono::steady_clock::duration Connection::TimeInside() const {
  const auto since = inside_since_.load();
  if (since == 0) return {};
  return std::chrono::steady_clock::now().time_since_epoch() -
         std::chrono::steady_clock::duration(since);
}

void FailAsTooLong(const std::string& what, std::chrono::milliseconds limit) {
  TVM_FFI_THROW(RuntimeError) << what << " did not end within "
                              << static_cast<double>(limit.count()) / 1000
                              << " s; do all workers call the same collectives in the same order?";
  TVM_FFI_UNREACHABLE();
}

void Connection::CheckNotEnded(const char* operation) const {
  DISTIR_REQUIRE(!ended_.load(), RuntimeError)
      << operation << " over " << description_ << " stopped because another worker failed";
}

void Connection::Check(const char* operation) const {
  CheckNotEnded(operation);
  int error = kNcclSuccess;
  const int result = Nccl().ncclCommGetAsyncError(comm_, &error);
  if (result != kNcclSuccess) Fail(operation, result);
  if (error != kNcclSuccess && error != kNcclInProgress) Fail(operation, error);
}

void Connection::Fail(const char* operation, int result) const {
  if (const int64_t limit = too_long_.load())
    FailAsTooLong(operation + (" over " + description_), std::chrono::milliseconds(limit));
  CheckNotEnded(operation);
  CheckNccl(result, operation + (" over " + description_));
  TVM_FFI_UNREACHABLE();
}

bool Connection::Leave(State next) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kOpen) return false;
  state_ = next;
  return true;
}

void Connection::SetState(State next) {
  const std::lock_guard<std::mutex> lock(mutex_);
  state_ = next;
  changed_.notify_all();
}

void Connection::Close() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, kEndPatience, [this] { return state_ != State::kEnding; });
  if (state_ == State::kEnding || state_ == State::kFreed) return;
  state_ = State::kFreed;
  lock.unlock();
  // The thread that makes another group of this one may still be inside.
  const std::unique_lock<std::mutex> inside(inside_, std::try_to_lock);
  ended_.store(true);
  if (inside.owns_lock()) Nccl().ncclCommDestroy(comm_);
}

void AbortAll(std::vector<std::shared_ptr<Connection>> connections) {
  const auto limit = std::chrono::steady_clock::now() + kEndPatience;
  while (!connections.empty() && std::chrono::steady_clock::now() < limit) {
    // Of those without a call inside: a call may wait for a kernel that one of them ends.
    std::vector<std::shared_ptr<Connection>> others;
    std::vector<std::unique_lock<std::mutex>> locks;
    Nccl().ncclGroupStart();
    for (const std::shared_ptr<Connection>& each : connections) {
      std::unique_lock<std::mutex> inside(each->inside_, std::try_to_lock);
      if (inside.owns_lock()) {
        Nccl().ncclCommAbort(each->comm_);
        locks.push_back(std::move(inside));
      } else {
        others.push_back(each);
      }
    }
    Nccl().ncclGroupEnd();
    locks.clear();
    for (const std::shared_ptr<Connection>& each : connections)
      if (std::find(others.begin(), others.end(), each) == others.end())
        each->SetState(Connection::State::kFreed);
    connections = std::move(others);
    if (!connections.empty()) std::this_thread::sleep_for(kLook);
  }
}

void RevokeAll(const std::vector<std::shared_ptr<Connection>>& connections) {
  // Each call tells its communicator; the end of the group waits for all.
  std::vector<std::shared_ptr<Connection>> refused;
  Nccl().ncclGroupStart();
  for (const std::shared_ptr<Connection>& each : connections)
    if (Nccl().ncclCommRevoke(each->comm_, 0) != kNcclSuccess) refused.push_back(each);
  if (Nccl().ncclGroupEnd() != kNcclSuccess) refused = connections;
  for (const std::shared_ptr<Connection>& each : connections)
    if (std::find(refused.begin(), refused.end(), each) == refused.end())
      each->SetState(Connection::State::kRevoked);
  AbortAll(std::move(refused));
}

void EndTogether(std::vector<std::shared_ptr<Connection>> connections) noexcept {
  std::vector<std::shared_ptr<Connection>> open;
  for (std::shared_ptr<Connection>& each : connections) {
    each->ended_.store(true);
    if (each->Leave(Connection::State::kEnding)) open.push_back(std::move(each));
  }
  if (open.empty()) return;
  auto end = [open = std::move(open)] {
    if (Nccl().ncclCommRevoke != nullptr) {
      RevokeAll(open);
    } else {
      AbortAll(open);
    }
  };
  try {
    std::thread(end).detach();
  } catch (const std::system_error&) {  // there is no thread for it
    end();
  }
}

}  // namespace distir::runtime::nccl
