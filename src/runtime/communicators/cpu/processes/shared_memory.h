/*!
 * \file runtime/communicators/cpu/processes/shared_memory.h
 * \brief Shared memory of a session's processes on one host, and its layout.
 *
 *   header | status of each worker | counts of each ordered pair of workers
 *          | places of messages of each ordered pair | arena of each worker
 *          | tensors of each worker | a byte for each worker
 *
 * Everybody looks at the counts of all who could have sent something, so these lie close to each
 * other: 8 MiB for 256 workers. Places are touched by pairs that send each other something.
 *
 * The bytes at the end hold nothing: they make the size say how many workers there are.
 *
 * It is a file without a name (memfd): a process that has a descriptor maps it, and it is gone with
 * the last of them, however they end. It is sparse, so a size costs nothing until it is written.
 * There are no locks in it: a process may be killed at any time. Its size is sealed.
 *
 * Every process of a session can write to all of it, so what is read here is looked at before it is
 * used: places, counts and sizes that do not fit are an error, and never lead out of it.
 *
 * A message lies in the arena of its sender (outbox.h); its place is passed on through the ring to
 * each receiver. Tensors that others may read where they lie are behind the arenas
 * (shared_tensors.h).
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_SHARED_MEMORY_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_SHARED_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/session/notes/shared_text.h"

namespace distir::runtime::cpu {

/*! \brief Reason for which a worker sleeps, or what else it waits for. */
enum WaitKind : uint32_t { kAwake = 0, kForMessage = 1, kForSpace = 2, kForDevice = 3 };

/*! \brief State of one worker. Written by itself, but for `doorbell`. */
struct alignas(64) WorkerStatus {
  std::atomic<int64_t> step;                   // that it runs or has run
  std::atomic<int64_t> finished_step;          // the last one that it has finished
  std::atomic<uint32_t> waiting;               // a WaitKind
  std::atomic<int32_t> full_ring_to;           // if it waits for space: the rank that has to read
  std::atomic<uint64_t> num_waits;             // numbers its waits
  SharedText wait;                             // what it waits for
  SharedText operator_name;                    // that runs
  alignas(64) std::atomic<uint32_t> doorbell;  // rung by whoever changes what it waits for
};

/*!
 * \brief Counts of messages that one worker has sent to another, and that this one has taken.
 *
 * Of workers on two hosts each host has one of the counts, for whoever looks at both; its messages
 * have no places.
 */
struct alignas(64) RingCounts {
  std::atomic<uint64_t> num_written;           // by the sender
  alignas(64) std::atomic<uint64_t> num_read;  // by the receiver
};

/*! \brief Places of messages from one worker to another, oldest first, with their counts. */
class Ring {
 public:
  static constexpr uint64_t kCapacity = 1024;

  Ring(RingCounts* counts, std::atomic<uint64_t>* places)
      : num_written(counts->num_written), num_read(counts->num_read), places_(places) {}

  std::atomic<uint64_t>& num_written;
  std::atomic<uint64_t>& num_read;

  std::atomic<uint64_t>& place(uint64_t index) const { return places_[index % kCapacity]; }
  bool empty() const {
    return num_written.load(std::memory_order_seq_cst) == num_read.load(std::memory_order_seq_cst);
  }
  bool full() const {
    return num_written.load(std::memory_order_seq_cst) - num_read.load(std::memory_order_seq_cst) ==
           kCapacity;
  }

 private:
  std::atomic<uint64_t>* places_;
};

/*! \brief The memory of the machine, in bytes. */
size_t PhysicalMemory();

class SharedMemory {
 public:
  /*!
   * \brief Makes the memory of a session.
   * \param arena_bytes Bytes that a worker may have in flight, which costs nothing until it has;
   * less if the arenas of so many workers would not fit a process's addresses.
   * \throws OSError-like RuntimeError of the system.
   */
  explicit SharedMemory(int num_workers, size_t arena_bytes = PhysicalMemory());
  /*!
   * \brief Maps the memory behind a descriptor, which it takes over.
   * \throws ValueError It was made for another number of workers.
   */
  SharedMemory(int descriptor, int num_workers);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  int descriptor() const { return descriptor_; }
  int num_workers() const { return num_workers_; }
  WorkerStatus& status(int rank) const;
  Ring ring(int source, int target) const;
  char* arena(int rank) const { return arenas_ + static_cast<size_t>(rank) * arena_bytes_; }
  size_t arena_bytes() const { return arena_bytes_; }
  /*! \brief Bytes of messages from other hosts that workers of this host have not received. */
  std::atomic<uint64_t>& unread_bytes() const { return header().unread_bytes; }
  /*! \brief Arena of a worker's tensors, as large as that of its messages. */
  char* tensors(int rank) const { return arena(num_workers_ + rank); }

  /*!
   * \brief Makes every call that waits, and every later one, throw.
   * \param rank Whose failure it is; -1 for the controller.
   * \return True if it is the first one.
   */
  bool Abort(int rank) noexcept;
  bool aborted() const { return header().first_failure.load(std::memory_order_acquire) != 0; }

 private:
  struct alignas(64) Header {
    std::atomic<int32_t> first_failure;  // 0: none; otherwise 2 + rank
    std::atomic<uint64_t> unread_bytes;
  };
  Header& header() const { return *reinterpret_cast<Header*>(base_); }
  void Map();
  size_t counts_begin() const;
  size_t places_begin() const;
  size_t fixed_bytes() const;  // before the arenas
  size_t all_bytes() const;

  const int num_workers_;
  int descriptor_ = -1;
  size_t arena_bytes_ = 0;
  char* base_ = nullptr;
  char* arenas_ = nullptr;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_SHARED_MEMORY_H_
