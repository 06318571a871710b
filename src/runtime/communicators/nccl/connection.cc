#include "runtime/communicators/nccl/connection.h"

#include <condition_variable>
#include <memory>
#include <thread>
#include <utility>

#include "runtime/communicators/nccl/library.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

// A call that only enqueues takes microseconds; one that takes longer waits for a peer.
constexpr std::chrono::milliseconds kAbortPatience{200};

// How often who waits for a communicator looks whether another worker has failed.
constexpr std::chrono::milliseconds kLook{20};

/*! \brief What the thread that makes a communicator and the one that waits for it share. */
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

Connection::~Connection() {
  if (!aborted_.load()) Nccl().ncclCommDestroy(comm_);
}

void Connection::CheckHealth(const char* operation) {
  std::lock_guard<std::timed_mutex> lock(mutex_);
  Check(operation);
}

void Connection::Check(const char* operation) const {
  DISTIR_REQUIRE(!aborted_.load(), RuntimeError)
      << operation << " over " << description_ << " stopped because another worker failed";
  int error = kNcclSuccess;
  const int result = Nccl().ncclCommGetAsyncError(comm_, &error);
  if (result != kNcclSuccess) Fail(operation, result);
  if (error != kNcclSuccess && error != kNcclInProgress) Fail(operation, error);
}

void Connection::Fail(const char* operation, int result) const {
  DISTIR_REQUIRE(!aborted_.load(), RuntimeError)
      << operation << " over " << description_ << " stopped because another worker failed";
  CheckNccl(result, operation + (" over " + description_));
  TVM_FFI_UNREACHABLE();
}

void Connection::Abort() noexcept {
  std::unique_lock<std::timed_mutex> lock(mutex_, kAbortPatience);
  if (!aborted_.exchange(true)) Nccl().ncclCommAbort(comm_);
}

}  // namespace distir::runtime::nccl
