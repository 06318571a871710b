// Registers the backend "mpi", whose hosts are the copies of a script.
#include "runtime/communicators/mpi/mpi_backend.h"

#include "runtime/communicators/mpi/library.h"
#include "runtime/communicators/mpi/mpi_collectives.h"
#include "support/error.h"

namespace distir::runtime::mpi {

namespace {

class MpiCarrier : public MessageCarrier {
 public:
  MpiCarrier(std::shared_ptr<Exchange> exchange, int rank, std::shared_ptr<void> memory)
      : exchange_(std::move(exchange)), rank_(rank), memory_(std::move(memory)) {}
  ~MpiCarrier() override { exchange_->Remove(rank_); }

  void Receive(MessageReceiver receiver) final { exchange_->Add(rank_, std::move(receiver)); }
  void Send(int rank, const char* bytes, int64_t num_bytes, std::atomic<uint32_t>* unsent) final {
    exchange_->Send(rank_, rank, bytes, num_bytes, unsent, memory_);
  }
  void Progress() final { exchange_->Progress(); }
  int lost() const final { return -1; }  // MPI's errors do not say which one it is

 private:
  const std::shared_ptr<Exchange> exchange_;
  const int rank_;
  const std::shared_ptr<void> memory_;
};

std::shared_ptr<Backend> MakeMpiBackend(WorkerSet workers) {
  KeptLibrary();
  DISTIR_REQUIRE(workers.own_rank >= 0 && !workers.host_of.empty(), RuntimeError)
      << "ccl=\"mpi\" is for workers of several copies of a script, workers=\"auto\" under mpiexec "
         "or srun; threads of one process have ccl=\"cpu\"";
  return std::make_shared<MpiBackend>(std::move(workers));
}

[[maybe_unused]] const bool kRegistered = RegisterBackend("mpi", MakeMpiBackend);

}  // namespace

std::unique_ptr<Communicator> MpiBackend::Connect(int) {
  TVM_FFI_THROW(InternalError) << "workers of MPI are connected over messages";
  TVM_FFI_UNREACHABLE();
}

std::unique_ptr<MessageCarrier> MpiBackend::Carrier(int rank, std::shared_ptr<void> memory) {
  return std::make_unique<MpiCarrier>(exchange_, rank, std::move(memory));
}

std::unique_ptr<LibraryCollectives> MpiBackend::Collectives(int) {
  return std::make_unique<MpiCollectives>(exchange_, workers_.bitwise);
}

}  // namespace distir::runtime::mpi
