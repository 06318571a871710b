// Makes one MPI communicator for each group that spans hosts.
#include "runtime/communicators/mpi/group_communicators.h"

#include <algorithm>
#include <set>

namespace distir::runtime::mpi {

bool GroupCommunicators::IsBetweenHosts(const Ranks& ranks) const {
  std::set<int> hosts;
  for (int rank : ranks) hosts.insert(host_of_[rank]);
  return ranks.size() > 1 && hosts.size() == ranks.size();
}

bool GroupCommunicators::Open(Handle parent, const std::vector<Ranks>& groups,
                              const std::function<bool(Handle*)>& is_done) {
  std::vector<Ranks> missing;
  for (const Ranks& ranks : groups)
    if (IsBetweenHosts(ranks) && known_.count(ranks) == 0) missing.push_back(ranks);
  if (missing.empty()) return true;
  if (!meeting_) {
    mpi_.Check(mpi_.call.MPI_Ibarrier(parent, &barrier_), "MPI_Ibarrier");
    meeting_ = true;
  }
  if (!is_done(&barrier_)) return false;
  meeting_ = false;
  std::vector<std::vector<Ranks>> splits;
  std::vector<std::set<int>> hosts;
  for (const Ranks& ranks : missing) {
    size_t i = 0;
    while (i < splits.size() && std::any_of(
                                    ranks.begin(), ranks.end(),
                                    [&](int rank) { return hosts[i].count(host_of_[rank]) > 0; }))
      ++i;
    if (i == splits.size()) {
      splits.emplace_back();
      hosts.emplace_back();
    }
    splits[i].push_back(ranks);
    for (int rank : ranks) hosts[i].insert(host_of_[rank]);
  }
  for (const std::vector<Ranks>& each : splits) Split(parent, each);
  return true;
}

void GroupCommunicators::Split(Handle parent, const std::vector<Ranks>& groups) {
  int color = kUndefined, key = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].size(); ++i) {
      if (host_of_[groups[g][i]] != mpi_.rank()) continue;
      color = static_cast<int>(g);
      key = static_cast<int>(i);
    }
    known_[groups[g]] = nullptr;
  }
  Handle comm = nullptr;
  mpi_.Check(mpi_.call.MPI_Comm_split(parent, color, key, &comm), "MPI_Comm_split");
  if (color == kUndefined) return;
  mpi_.Check(mpi_.call.MPI_Comm_set_errhandler(comm, mpi_.handle(mpi_.abi.errors_return)),
             "MPI_Comm_set_errhandler");
  known_[groups[color]] = comm;
}

Handle GroupCommunicators::Find(const Ranks& ranks) const {
  const auto found = known_.find(ranks);
  return found == known_.end() ? nullptr : found->second;
}

void GroupCommunicators::Free() {
  for (auto& [ranks, comm] : known_)
    if (comm != nullptr) mpi_.call.MPI_Comm_free(&comm);
  known_.clear();
}

}  // namespace distir::runtime::mpi
