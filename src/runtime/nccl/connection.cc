#include "runtime/nccl/connection.h"

#include <chrono>
#include <utility>

#include "runtime/nccl/library.h"
#include "support/error.h"

namespace distir::runtime::nccl {

namespace {

// A call that only enqueues takes microseconds; one that takes longer waits for a peer.
constexpr std::chrono::milliseconds kAbortPatience{200};

}  // namespace

Connection::Connection(int size, const UniqueId& id, int position, std::string description)
    : description_(std::move(description)) {
  const int result = Nccl().ncclCommInitRank(&comm_, size, id, position);
  if (result != kNcclSuccess) Fail("connecting", result);
}

Connection::~Connection() {
  if (comm_ != nullptr && !aborted_.load()) Nccl().ncclCommDestroy(comm_);
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
