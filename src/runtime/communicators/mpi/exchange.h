/*!
 * \file runtime/communicators/mpi/exchange.h
 * \brief Messages of one session between the copies of a script, each of which is one MPI rank with
 * one or more workers.
 *
 * All calls of MPI are non-blocking and tested, so that a worker that waits sees when the session
 * is aborted, and one that does not wait is not kept from its work. Workers that wait test; while
 * none does and something is being sent, a thread of the process does.
 *
 * Groups whose members are on different hosts have communicators for MPI's own collectives
 * (mpi_collectives.h), which are tested in the same way.
 *
 * A message's tag says from which worker of its copy to which of the other it goes. What MPI was
 * given and has not finished when a session ends stays where it is until MPI has: an aborted
 * session leaves messages that nobody receives.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_MPI_EXCHANGE_H_
#define DISTIR_RUNTIME_COMMUNICATORS_MPI_EXCHANGE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/communicators/message_carrier.h"
#include "runtime/communicators/mpi/group_communicators.h"
#include "runtime/communicators/mpi/library.h"

namespace distir::runtime::mpi {

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  /*!
   * \brief Exchange of a session, which the first of its workers in this process makes.
   * \throws RuntimeError if the session's hosts are not the ranks of MPI, each of them once.
   */
  static std::shared_ptr<Exchange> Of(const WorkerSet& workers);

  /*! \brief Made by Of. */
  explicit Exchange(const WorkerSet& workers);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /*! \brief True if all copies have agreed on the session; nothing may be sent before. */
  bool Ready();

  void Add(int rank, MessageReceiver receiver);
  void Remove(int rank) noexcept;

  /*! \brief Sends a message as MessageCarrier does; `memory` is what the bytes lie in. */
  void Send(int source, int target, const char* bytes, int64_t num_bytes,
            std::atomic<uint32_t>* unsent, std::shared_ptr<void> memory);

  /*! \brief Tests what there is. \throws ConnectionError if MPI has failed. */
  void Progress();

  /*! \brief Opens groups as GroupCommunicators::Open, in all copies. */
  bool OpenGroups(const std::vector<std::vector<int>>& groups);
  /*! \brief Null if it was not opened. */
  Handle GroupCommunicator(const std::vector<int>& ranks);

  /*! \brief Starts a collective: `start` calls MPI. */
  Handle Start(const std::function<int(Handle* request)>& start);
  /*! \brief True if the collective has ended. \throws ConnectionError if MPI has failed. */
  bool Done(Handle* request);
  /*! \brief Nobody waits for it any longer; keeps its memory until it has ended. */
  void GiveUp(Handle request, std::shared_ptr<const void> memory);

  Library& mpi() { return mpi_; }

 private:
  struct Sending {
    Handle request;
    std::atomic<uint32_t>* unsent;  // null: a collective that was given up
    std::shared_ptr<const void> memory;
  };
  struct Receiving {
    Handle request;
    int source, target;  // ranks of workers
    char* bytes;
    int64_t num_bytes;
    std::vector<char> discarded;  // has the bytes, if nobody wants them
  };

  void TestSends();
  void Match();
  void TestReceives(std::deque<Receiving>* receives);
  bool Test(Handle* request);
  [[noreturn]] void Fail(const char* function, int result);
  void CheckFailed() const;

  friend class Background;

  Library& mpi_;
  const std::vector<int> host_of_;
  std::vector<int> lane_of_;
  std::vector<std::vector<int>> ranks_of_;  // by host
  int num_lanes_ = 0;                       // of the host with the most workers
  Handle comm_ = nullptr;
  Handle duplicating_ = nullptr;
  GroupCommunicators groups_;
  bool ready_ = false;
  bool failed_ = false;
  std::string why_failed_;
  std::vector<MessageReceiver> receivers_;  // by rank; those of this host
  std::deque<Sending> sends_;
  std::vector<std::deque<Receiving>> receives_;  // by host
  std::atomic<int64_t> num_sends_{0};
};

}  // namespace distir::runtime::mpi

#endif  // DISTIR_RUNTIME_COMMUNICATORS_MPI_EXCHANGE_H_
