/*!
 * \file runtime/communicators/cpu/processes/peers.h
 * \brief Interface for messages to and from workers of other hosts.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PEERS_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PEERS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/communicators/cpu/processes/outbox.h"

namespace distir::runtime::cpu {

/*!
 * \brief Room for messages that have arrived and were not taken. Workers of one host share it.
 *
 * Messages of many scopes come one after the other, and a worker may wait for any of them: to leave
 * some unread may leave the one that is waited for behind them. So all are read at once, and there
 * is a limit, for who never stops to send.
 */
struct Room {
  std::atomic<uint64_t>* used = nullptr;  // in bytes
  uint64_t limit = 0;

  /*! \brief Takes room for a message; those without bytes are as many as a peer likes. */
  bool Take(int64_t num_bytes) const {
    const uint64_t size = SizeOf(num_bytes);
    return used->fetch_add(size, std::memory_order_relaxed) + size <= limit;
  }
  void GiveBack(int64_t num_bytes) const {
    used->fetch_sub(SizeOf(num_bytes), std::memory_order_relaxed);
  }
  static uint64_t SizeOf(int64_t num_bytes) {
    return sizeof(Block) + static_cast<uint64_t>(num_bytes);
  }
};

/*! \brief More than a sender puts into one message; a header that claims more is not one. */
constexpr int64_t kLongestMessage = int64_t{1} << 20;

class Peers {
 public:
  virtual ~Peers() = default;

  virtual bool Reaches(int rank) const = 0;

  /*! \brief Sends a block, and counts it down when it is written. Does not wait. */
  virtual void Send(int rank, Block* block, int64_t num_bytes) = 0;

  /*! \brief True if messages have arrived that were not taken. */
  virtual bool AnythingArrived() const = 0;
  /*! \brief These messages, by rank of the sender: blocks that outbox.h's FreeBlock frees. */
  virtual std::vector<std::pair<int, Block*>> TakeArrived() = 0;
  /*! \brief Gives the room of a message back that is not kept any longer. */
  virtual void GiveBack(int rank, int64_t num_bytes) = 0;

  /*! \brief A rank whose connection has ended, or -1. */
  virtual int lost() const = 0;
  /*! \brief The rank of which the most lay here when there was no room more; -1 if there is. */
  virtual int flooding() const = 0;

  /*! \brief True if a worker that waits has to look itself whether messages have arrived. */
  virtual bool must_progress() const { return false; }
  virtual void Progress() {}
};

/*!
 * \brief Connects a worker with those of other hosts.
 * \param room Whoever sends more is as one whose connection has ended.
 * \param wake Called when a message has arrived, or a connection has ended; by any thread.
 */
using ConnectPeers = std::function<std::unique_ptr<Peers>(Room room, std::function<void()> wake)>;

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_PEERS_H_
