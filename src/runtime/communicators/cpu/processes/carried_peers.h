/*!
 * \file runtime/communicators/cpu/processes/carried_peers.h
 * \brief Sends messages between hosts through a backend's carrier (message_carrier.h).
 *
 * A message is the header of a block and its bytes, which lie behind each other.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_CARRIED_PEERS_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_CARRIED_PEERS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "runtime/communicators/cpu/processes/peers.h"
#include "runtime/communicators/message_carrier.h"

namespace distir::runtime::cpu {

class CarriedPeers : public Peers {
 public:
  /*! \param neighbours The ranks of this host, which it does not reach. */
  CarriedPeers(std::shared_ptr<MessageCarrier> carrier, std::set<int> neighbours, Room room,
               std::function<void()> wake);
  ~CarriedPeers() override;
  CarriedPeers(const CarriedPeers&) = delete;
  CarriedPeers& operator=(const CarriedPeers&) = delete;

  bool Reaches(int rank) const final { return neighbours_.count(rank) == 0; }
  void Send(int rank, Block* block, int64_t num_bytes) final;
  bool AnythingArrived() const final { return anything_arrived_.load(std::memory_order_seq_cst); }
  std::vector<std::pair<int, Block*>> TakeArrived() final;
  void GiveBack(int, int64_t num_bytes) final { room_.GiveBack(num_bytes); }
  int lost() const final;
  int flooding() const final { return flooding_.load(std::memory_order_seq_cst); }
  bool must_progress() const final { return true; }
  void Progress() final { carrier_->Progress(); }

 private:
  char* Begin(int rank, int64_t num_bytes);
  void End(int rank, char* bytes, int64_t num_bytes);

  const std::set<int> neighbours_;
  const Room room_;
  const std::function<void()> wake_;
  std::atomic<int> damaged_{-1};
  std::atomic<int> flooding_{-1};
  std::atomic<bool> anything_arrived_{false};
  std::mutex mutex_;
  std::vector<std::pair<int, Block*>> arrived_;
  const std::shared_ptr<MessageCarrier> carrier_;  // calls this until it is gone
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_CARRIED_PEERS_H_
