#include "runtime/communicators/mpi/mpi_communicator.h"

#include <tvm/ffi/error.h>

#include <chrono>
#include <thread>
#include <utility>

#include "support/error.h"

namespace distir::runtime::mpi {

MpiCommunicator::MpiCommunicator(std::shared_ptr<Exchange> exchange, int rank,
                                 const WorkerSet& workers, std::unique_ptr<Communicator> messages)
    : exchange_(std::move(exchange)),
      rank_(rank),
      workers_(workers),
      messages_(std::move(messages)) {}

void MpiCommunicator::Join(const std::string&) {
  workers_.waits_for("other copies, in MPI_Comm_idup");
  while (!exchange_->Ready()) {
    DISTIR_REQUIRE(!workers_.aborted(), RuntimeError)
        << "connecting stopped because another worker failed";
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  workers_.waits_for("");
}

void MpiCommunicator::Transfer(const TransferPlan& plan, const TensorView* x,
                               const TensorView* out) {
  messages_->CallBegins(call());
  messages_->Transfer(plan, x, out);
}

}  // namespace distir::runtime::mpi
