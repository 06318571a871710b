// Allocates messages in a worker's arena until all receivers have read them.
#include "runtime/communicators/cpu/processes/outbox.h"

#include <sys/mman.h>
#include <tvm/ffi/error.h>

#include <algorithm>
#include <new>

namespace distir::runtime::cpu {

namespace {

constexpr size_t kKeptBytes = size_t{64} << 20;  // not given back after each step

int ClassOf(size_t bytes) {
  int size_class = 0;
  while ((size_t{1} << size_class) < std::max(bytes, Outbox::kLeastBytes)) ++size_class;
  return size_class;
}

}  // namespace

Block* NewBlock(int64_t num_bytes) {
  const size_t size = sizeof(Block) + static_cast<size_t>(num_bytes);
  Block* block = new (::operator new(size, std::align_val_t(alignof(Block)))) Block();
  block->num_readers.store(1, std::memory_order_relaxed);
  return block;
}

void FreeBlock(Block* block) noexcept {
  if (block != nullptr) ::operator delete(block, std::align_val_t(alignof(Block)));
}

Slot Outbox::Allocate(int64_t num_bytes) {
  const int size_class = ClassOf(sizeof(Block) + static_cast<size_t>(num_bytes));
  std::vector<Block*>& free = free_[size_class];
  if (free.empty() || in_flight_.size() >= reclaim_at_) Reclaim();
  if (!free.empty()) {
    Block* block = free.back();
    free.pop_back();
    return {block, size_class, num_bytes};
  }
  const size_t size = size_t{1} << size_class;
  if (arena_bytes_ - used_bytes_ < size) {
    TVM_FFI_THROW(RuntimeError) << used_bytes_
                                << " bytes have been sent to workers that do not receive them";
  }
  Block* block = new (arena_ + used_bytes_) Block();
  used_bytes_ += size;
  return {block, size_class, num_bytes};
}

void Outbox::Sent(const Slot& slot) { in_flight_.push_back(slot); }

void Outbox::Reclaim() {
  auto read = [this](const Slot& slot) {
    if (slot.block->num_readers.load(std::memory_order_acquire) != 0) return false;
    free_[slot.size_class].push_back(slot.block);
    return true;
  };
  in_flight_.erase(std::remove_if(in_flight_.begin(), in_flight_.end(), read), in_flight_.end());
  reclaim_at_ = std::max<size_t>(16, 2 * in_flight_.size());
}

void Outbox::Trim() noexcept {
  if (used_bytes_ <= kKeptBytes) return;
  Reclaim();
  if (!in_flight_.empty()) return;
  for (std::vector<Block*>& free : free_) free.clear();
  madvise(arena_, used_bytes_, MADV_REMOVE);
  used_bytes_ = 0;
}

}  // namespace distir::runtime::cpu
