/*!
 * \file runtime/communicators/cpu/threads/thread_backend.h
 * \brief Collectives between workers that are threads of one process, on host memory.
 *
 * Registered under the name "cpu". Members of a group see each other's buffers (rendezvous.h), so
 * a gather is one copy per element and a reduction is split: each member reduces its part of the
 * elements and writes it to everybody's output. Outputs may be one (shared_result.h): then it is
 * written once. Point-to-point transfers go through mailboxes.
 *
 * Every session has its own backend; sessions share nothing. Groups may overlap: each set of
 * members in each order has its own rendezvous.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_THREAD_BACKEND_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_THREAD_BACKEND_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/cpu/threads/mailbox.h"
#include "runtime/communicators/cpu/threads/progress.h"
#include "runtime/communicators/cpu/threads/rendezvous.h"
#include "runtime/communicators/cpu/threads/shared_result.h"

namespace distir::runtime::cpu {

/*! \brief State that the members of a group share. */
struct MeetingPlace {
  Rendezvous rendezvous;
  SharedResult result;
};

class ThreadBackend : public Backend, public std::enable_shared_from_this<ThreadBackend> {
 public:
  explicit ThreadBackend(std::vector<int> device_ids);

  std::unique_ptr<Communicator> Connect(int rank) final;
  void Abort() noexcept final;
  void StepBegins(int rank, int64_t step) noexcept final { progress_.StepBegins(rank, step); }
  void StepEnds(int rank, int64_t step) noexcept final { progress_.StepEnds(rank, step); }
  std::string WaitOf(int rank) const final { return progress_.WaitOf(rank); }
  void WorkersEnded() noexcept final { results_->FreeKept(); }

  /*! \brief The meeting place of a group; the same for all its members. */
  std::shared_ptr<MeetingPlace> FindMeetingPlace(const std::vector<int>& ranks);
  /*! \brief The boxes on their way from one worker to another on a channel. */
  Mailbox* FindMailbox(int64_t channel, int source, int target);
  int64_t step(int rank) const { return progress_.step(rank); }

 private:
  const std::vector<int> device_ids_;
  const std::shared_ptr<ResultMemory> results_ = std::make_shared<ResultMemory>();
  Progress progress_;
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;
  std::map<std::vector<int>, std::shared_ptr<MeetingPlace>> places_;
  std::map<std::tuple<int64_t, int, int>, std::unique_ptr<Mailbox>> mailboxes_;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_THREADS_THREAD_BACKEND_H_
