/*!
 * \file runtime/communicators/mpi/group_communicators.h
 * \brief MPI communicators of groups whose members are on different hosts.
 *
 * They are made by MPI_Comm_split, in which all copies of the script have to be at once. It cannot
 * be given up, so copies meet before in a barrier that can. Within a copy whichever worker comes
 * first does it for all of them.
 *
 * Groups of one split are on different hosts. Example, four workers on each of hosts a and b:
 * groups [a0, b0] .. [a3, b3] take four splits; on hosts a to d, [a0, b0] and [c0, d0] take one.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_MPI_GROUP_COMMUNICATORS_H_
#define DISTIR_RUNTIME_COMMUNICATORS_MPI_GROUP_COMMUNICATORS_H_

#include <functional>
#include <map>
#include <vector>

#include "runtime/communicators/mpi/library.h"

namespace distir::runtime::mpi {

/*! \brief Those of one session in this process. Its caller holds the library's mutex. */
class GroupCommunicators {
 public:
  using Ranks = std::vector<int>;

  /*! \param host_of By rank of the session the rank of MPI. */
  GroupCommunicators(Library& mpi, const std::vector<int>& host_of)
      : mpi_(mpi), host_of_(host_of) {}

  /*!
   * \brief Opens groups, of all ranks of `parent` alike; called until it returns true.
   * \param is_done Tests a request.
   */
  bool Open(Handle parent, const std::vector<Ranks>& groups,
            const std::function<bool(Handle*)>& is_done);

  /*! \brief Communicator of a group of this copy; its ranks are positions. Null if it was not
   * opened. */
  Handle Find(const Ranks& ranks) const;

  /*! \brief True if nothing is under way. */
  bool idle() const { return !meeting_; }
  void Free();

 private:
  bool IsBetweenHosts(const Ranks& ranks) const;
  void Split(Handle parent, const std::vector<Ranks>& groups);

  Library& mpi_;
  const std::vector<int>& host_of_;
  bool meeting_ = false;
  Handle barrier_ = nullptr;
  std::map<Ranks, Handle> known_;  // null: not one of this copy
};

}  // namespace distir::runtime::mpi

#endif  // DISTIR_RUNTIME_COMMUNICATORS_MPI_GROUP_COMMUNICATORS_H_
