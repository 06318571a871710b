// Chooses which collectives MPI runs itself, and starts them.
#include "runtime/communicators/mpi/mpi_collectives.h"

#include <cstdlib>
#include <string>

#include "runtime/kernels/strided_copy.h"
#include "support/error.h"

namespace distir::runtime::mpi {

namespace {

constexpr char kChoiceVariable[] = "DISTIR_EXT_MPI_COLLECTIVES";

// From how many bytes of the larger tensor on MPI's own are quicker than messages, as measured
// (docs/clusters.md).
int64_t LeastBytes(LibraryOperation operation) {
  constexpr int64_t kMebibyte = 1 << 20;
  switch (operation) {
    case LibraryOperation::kReduceScatter:
      return 16 * kMebibyte;
    case LibraryOperation::kAllReduce:
    case LibraryOperation::kAllGather:
    case LibraryOperation::kAllToAll:
      return 32 * kMebibyte;
  }
  return 0;
}

bool IsInteger(DLDataType dtype) { return dtype.code == kDLInt || dtype.code == kDLUInt; }

// MPI's type for a reduction; 0 if it has none.
uintptr_t TypeOf(const Abi& abi, DLDataType dtype, ReduceKind kind) {
  if (dtype.lanes != 1) return 0;
  const bool is_ordered = kind == ReduceKind::kMax || kind == ReduceKind::kMin;
  if (dtype.code == kDLFloat) {
    if (is_ordered) return 0;  // MPI_MAX and MPI_MIN lose NaN
    return dtype.bits == 32 ? abi.float32 : dtype.bits == 64 ? abi.float64 : 0;
  }
  if (!IsInteger(dtype)) return 0;
  const bool is_signed = dtype.code == kDLInt && is_ordered;
  // Open MPI's vector instructions (op/avx of 5.0) saturate where narrow sums should wrap around.
  if (!is_ordered && dtype.bits < 32) return 0;
  switch (dtype.bits) {
    case 8:
      return is_signed ? abi.int8 : abi.uint8;
    case 16:
      return is_signed ? abi.int16 : abi.uint16;
    case 32:
      return is_signed ? abi.int32 : abi.uint32;
    case 64:
      return is_signed ? abi.int64 : abi.uint64;
  }
  return 0;
}

uintptr_t OperationOf(const Abi& abi, ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      return abi.sum;
    case ReduceKind::kProd:
      return abi.prod;
    case ReduceKind::kMax:
      return abi.max;
    case ReduceKind::kMin:
      return abi.min;
    case ReduceKind::kMean:
      return 0;
  }
  return 0;
}

Choice StatedChoice() {
  const char* stated = std::getenv(kChoiceVariable);
  const std::string choice = stated == nullptr ? "" : stated;
  if (choice.empty()) return Choice::kMeasured;
  if (choice == "always") return Choice::kAlways;
  DISTIR_REQUIRE(choice == "never", ValueError)
      << kChoiceVariable << " is \"" << choice << "\"; it is always, never, or not set";
  return Choice::kNever;
}

class StartedOfMpi : public StartedCollective {
 public:
  using Memory = std::pair<std::shared_ptr<const char>, std::shared_ptr<char>>;

  StartedOfMpi(std::shared_ptr<Exchange> exchange, Handle request,
               std::shared_ptr<const char> operand, std::shared_ptr<char> result)
      : exchange_(std::move(exchange)),
        request_(request),
        memory_(std::move(operand), std::move(result)) {}
  ~StartedOfMpi() override {
    if (done_) return;
    exchange_->GiveUp(request_, std::make_shared<Memory>(std::move(memory_)));
  }

  bool Done() final {
    if (!done_) done_ = exchange_->Done(&request_);
    return done_;
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
  Handle request_;
  Memory memory_;
  bool done_ = false;
};

}  // namespace

MpiCollectives::MpiCollectives(std::shared_ptr<Exchange> exchange, bool bitwise)
    : exchange_(std::move(exchange)), bitwise_(bitwise), choice_(StatedChoice()) {}

void MpiCollectives::Join(const WaitUntil& wait) {
  wait([] { return std::string("other copies, in MPI_Comm_idup"); },
       [this] { return exchange_->Ready(); });
}

void MpiCollectives::Open(const std::vector<Ranks>& groups, const WaitUntil& wait) {
  wait([] { return std::string("other copies, to split communicators of MPI"); },
       [this, &groups] { return exchange_->OpenGroups(groups); });
}

bool MpiCollectives::Takes(const Ranks& ranks, const LibraryCall& call) const {
  if (choice_ == Choice::kNever || call.num_bytes == 0) return false;
  if (choice_ == Choice::kMeasured && call.num_bytes < LeastBytes(call.operation)) return false;
  if (call.operation == LibraryOperation::kAllReduce ||
      call.operation == LibraryOperation::kReduceScatter) {
    const Abi& abi = exchange_->mpi().abi;
    if (TypeOf(abi, call.dtype, call.kind) == 0 || OperationOf(abi, call.kind) == 0) return false;
    const bool is_sum = call.kind == ReduceKind::kSum || call.kind == ReduceKind::kProd;
    if (!IsInteger(call.dtype) && (bitwise_ || !is_sum)) return false;
  }
  return exchange_->GroupCommunicator(ranks) != nullptr;
}

std::unique_ptr<StartedCollective> MpiCollectives::Start(const Ranks& ranks,
                                                         const LibraryCall& call,
                                                         std::shared_ptr<const char> operand,
                                                         std::shared_ptr<char> result,
                                                         int64_t count) {
  Library& mpi = exchange_->mpi();
  const Handle comm = exchange_->GroupCommunicator(ranks);
  const char* from = operand.get();
  char* to = result.get();
  const int number = Count(count);
  const int num_bytes = Count(count * ElementBytes(call.dtype));
  const Handle type = mpi.handle(TypeOf(mpi.abi, call.dtype, call.kind));
  const Handle reduction = mpi.handle(OperationOf(mpi.abi, call.kind));
  const Handle byte = mpi.byte();
  const Handle request = exchange_->Start([&](Handle* started) {
    switch (call.operation) {
      case LibraryOperation::kAllReduce:
        return mpi.call.MPI_Iallreduce(from, to, number, type, reduction, comm, started);
      case LibraryOperation::kReduceScatter:
        return mpi.call.MPI_Ireduce_scatter_block(from, to, number, type, reduction, comm, started);
      case LibraryOperation::kAllGather:
        return mpi.call.MPI_Iallgather(from, num_bytes, byte, to, num_bytes, byte, comm, started);
      case LibraryOperation::kAllToAll:
        return mpi.call.MPI_Ialltoall(from, num_bytes, byte, to, num_bytes, byte, comm, started);
    }
    return kSuccess;
  });
  return std::make_unique<StartedOfMpi>(exchange_, request, std::move(operand), std::move(result));
}

}  // namespace distir::runtime::mpi
