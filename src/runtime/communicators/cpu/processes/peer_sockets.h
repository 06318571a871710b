/*!
 * \file runtime/communicators/cpu/processes/peer_sockets.h
 * \brief Messages to and from workers of other hosts, over connected sockets.
 *
 * Blocks are sent straight from the sender's outbox, which counts a socket as one of their readers.
 * A thread of its own reads whatever arrives, however much that is, and writes what a socket did
 * not take at once: so workers that send to each other need not wait for each other.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PEER_SOCKETS_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PEER_SOCKETS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/communicators/cpu/processes/outbox.h"
#include "runtime/communicators/cpu/processes/peers.h"

namespace distir::runtime::cpu {

/*! \brief A connection to a worker of another host. */
struct Peer {
  int descriptor = -1;      // a connected socket; -1 for a worker that is not reached this way
  std::string key;          // encrypts it (tls_stream.h); empty for nothing
  bool connecting = false;  // which end it is, of two with one key
};

class PeerSockets : public Peers {
 public:
  /*!
   * \param peers By rank; sockets are taken over.
   * \param room Whoever sends more is as one whose connection has ended.
   * \param wake Called by the thread when a message has arrived, or a connection has ended.
   */
  PeerSockets(const std::vector<Peer>& peers, Room room, std::function<void()> wake);
  ~PeerSockets() override;
  PeerSockets(const PeerSockets&) = delete;
  PeerSockets& operator=(const PeerSockets&) = delete;

  bool Reaches(int rank) const final { return connections_[rank] != nullptr; }
  void Send(int rank, Block* block, int64_t num_bytes) final;
  bool AnythingArrived() const final { return anything_arrived_.load(std::memory_order_seq_cst); }
  std::vector<std::pair<int, Block*>> TakeArrived() final;
  void GiveBack(int rank, int64_t num_bytes) final;
  int lost() const final { return lost_.load(std::memory_order_seq_cst); }
  int flooding() const final { return flooding_.load(std::memory_order_seq_cst); }

 private:
  struct Connection;

  void Run();
  void Serve(Connection* connection, bool writable, bool readable);
  bool Read(Connection* connection);
  bool TakeRoom(Connection* connection, int64_t num_bytes);
  static bool Write(Connection* connection);
  void End(Connection* connection);

  std::vector<std::unique_ptr<Connection>> connections_;  // by rank
  const Room room_;
  const std::function<void()> wake_;
  const int event_;  // tells the thread that there is something to write, or that it ends
  std::atomic<bool> stopping_{false};
  std::atomic<int> lost_{-1};
  std::atomic<int> flooding_{-1};
  std::atomic<bool> anything_arrived_{false};
  std::mutex mutex_;
  std::vector<std::pair<int, Block*>> arrived_;
  std::thread thread_;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PEER_SOCKETS_H_
