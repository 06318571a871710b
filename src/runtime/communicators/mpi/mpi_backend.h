/*!
 * \file runtime/communicators/mpi/mpi_backend.h
 * \brief Collectives between hosts by an installed MPI. Registered under the name "mpi".
 *
 * Hosts are the copies of a script that MPI has started. Workers are threads of these copies, since
 * MPI knows no other processes; within a copy they exchange tensors through memory, as processes of
 * one host do. Between copies MPI carries their messages (exchange.h), and does collectives of its
 * own (mpi_collectives.h).
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_MPI_MPI_BACKEND_H_
#define DISTIR_RUNTIME_COMMUNICATORS_MPI_MPI_BACKEND_H_

#include <memory>
#include <utility>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/mpi/exchange.h"

namespace distir::runtime::mpi {

class MpiBackend : public Backend {
 public:
  explicit MpiBackend(WorkerSet workers)
      : workers_(std::move(workers)), exchange_(Exchange::Of(workers_)) {}

  std::unique_ptr<Communicator> Connect(int rank) final;
  std::unique_ptr<MessageCarrier> Carrier(int rank, std::shared_ptr<void> memory) final;
  std::unique_ptr<LibraryCollectives> Collectives(int rank) final;
  void Abort() noexcept final {
  }  // what messages wait in notices it, and collectives wait there too
  void StepBegins(int, int64_t) noexcept final {}
  void StepEnds(int, int64_t) noexcept final {}

 private:
  const WorkerSet workers_;
  const std::shared_ptr<Exchange> exchange_;
};

}  // namespace distir::runtime::mpi

#endif  // DISTIR_RUNTIME_COMMUNICATORS_MPI_MPI_BACKEND_H_
