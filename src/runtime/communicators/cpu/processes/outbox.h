/*!
 * \file runtime/communicators/cpu/processes/outbox.h
 * \brief Keeps messages of a worker in shared memory until all receivers have read them.
 *
 * Messages are blocks of the sender's arena. Each receiver counts down when it has read; the sender
 * uses the block again. Messages in flight are limited by the machine's memory only, so senders
 * need not wait; the last block that was returned is used first, as it is in the cache.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_OUTBOX_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_OUTBOX_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/communicators/cpu/transport.h"

namespace distir::runtime::cpu {

/*!
 * \brief A message; its bytes follow. Other processes can write to one in shared memory at any
 * time, so nothing is read of it whose limits are not known otherwise.
 */
struct alignas(64) Block {
  std::atomic<uint32_t> num_readers;  // who have not read it yet
  MessageHeader header;

  char* bytes() { return reinterpret_cast<char*>(this) + sizeof(Block); }
};

/*! \brief A block outside of shared memory, as messages from other hosts are received in. */
Block* NewBlock(int64_t num_bytes);
/*! \brief Frees a block of NewBlock, or nullptr. */
void FreeBlock(Block* block) noexcept;

/*! \brief A block of an arena, and what its owner knows of it. */
struct Slot {
  Block* block = nullptr;
  int size_class = 0;
  int64_t num_bytes = 0;
};

class Outbox {
 public:
  static constexpr size_t kLeastBytes = 512;  // that a message takes

  Outbox(char* arena, size_t arena_bytes) : arena_(arena), arena_bytes_(arena_bytes) {}

  /*! \brief A block for so many bytes. \throws RuntimeError if the arena is full. */
  Slot Allocate(int64_t num_bytes);
  /*! \brief Remembers a block with readers, until all of them have read it. */
  void Sent(const Slot& slot);
  /*! \brief Gives much memory that is not in use back to the system. */
  void Trim() noexcept;

 private:
  void Reclaim();

  static constexpr int kNumClasses = 48;  // of 2^class bytes

  char* const arena_;
  const size_t arena_bytes_;
  size_t used_bytes_ = 0;  // blocks lie before it
  std::array<std::vector<Block*>, kNumClasses> free_;
  std::vector<Slot> in_flight_;
  size_t reclaim_at_ = 16;  // number in flight at which to look who have been read
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_OUTBOX_H_
