/*!
 * \file runtime/communicators/mpi/mpi_collectives.h
 * \brief MPI's own collectives between hosts, all of them non-blocking: one worker's end.
 *
 * Takes decides which calls they take, from what MPI can do as this project does it,
 * and from measurements (docs/clusters.md):
 *  - an all-gather and an all-to-all of any dtype;
 *  - max and min of integers, and sums and products of those of 32 and 64 bits, which have one
 *    result in any order. Sums and products of signed ones are those of unsigned ones, which wrap
 *    around; those of 8 and 16 bits do not in Open MPI;
 *  - sums and products of float32 and float64, in an order of MPI's choice, where the session does
 *    not ask for bits. Not their max and min, as MPI does not say what becomes of a NaN.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_MPI_MPI_COLLECTIVES_H_
#define DISTIR_RUNTIME_COMMUNICATORS_MPI_MPI_COLLECTIVES_H_

#include <memory>
#include <utility>
#include <vector>

#include "runtime/communicators/library_collectives.h"
#include "runtime/communicators/mpi/exchange.h"

namespace distir::runtime::mpi {

/*! \brief Choice of the collectives that MPI runs itself: DISTIR_EXT_MPI_COLLECTIVES. */
enum class Choice { kMeasured, kAlways, kNever };

class MpiCollectives : public LibraryCollectives {
 public:
  /*! \throws ValueError if DISTIR_EXT_MPI_COLLECTIVES is something unknown. */
  MpiCollectives(std::shared_ptr<Exchange> exchange, bool bitwise);

  void Join(const WaitUntil& wait) final;
  void Open(const std::vector<Ranks>& groups, const WaitUntil& wait) final;
  bool TakesDeviceMemory() const final { return exchange_->mpi().is_cuda_aware(); }
  bool Takes(const Ranks& ranks, const LibraryCall& call) const final;
  std::unique_ptr<StartedCollective> Start(const Ranks& ranks, const LibraryCall& call,
                                           std::shared_ptr<const char> operand,
                                           std::shared_ptr<char> result, int64_t count) final;

 private:
  const std::shared_ptr<Exchange> exchange_;
  const bool bitwise_;
  const Choice choice_;
};

}  // namespace distir::runtime::mpi

#endif  // DISTIR_RUNTIME_COMMUNICATORS_MPI_MPI_COLLECTIVES_H_
