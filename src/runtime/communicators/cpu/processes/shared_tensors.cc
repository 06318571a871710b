// Allocates tensors in shared memory.
#include "runtime/communicators/cpu/processes/shared_tensors.h"

#include <sys/mman.h>
#include <tvm/ffi/error.h>

#include <new>
#include <utility>

namespace distir::runtime::cpu {

SharedTensors::SharedTensors(std::shared_ptr<SharedMemory> memory, int rank)
    : memory_(std::move(memory)), base_(memory_->tensors(rank)) {}

void* SharedTensors::Allocate(size_t bytes) {
  std::vector<void*>& blocks = free_[bytes];
  if (!blocks.empty()) {
    void* block = blocks.back();
    blocks.pop_back();
    return block;
  }
  if (memory_->arena_bytes() - used_bytes_ < bytes) {
    TVM_FFI_THROW(RuntimeError) << "there is no memory for " << bytes
                                << " bytes that worker processes share; " << used_bytes_
                                << " bytes are in use";
  }
  void* block = base_ + used_bytes_;
  used_bytes_ += bytes;
  return block;
}

void SharedTensors::Free(void* block, size_t bytes) noexcept {
  madvise(block, bytes, MADV_REMOVE);
  try {
    free_[bytes].push_back(block);
  } catch (const std::bad_alloc&) {  // its addresses are lost
  }
}

}  // namespace distir::runtime::cpu
