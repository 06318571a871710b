#include "runtime/result_memory.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace distir::runtime {

namespace {

constexpr size_t kSmallestBlock = 4096;
constexpr size_t kAlignment = 64;

size_t BlockBytes(size_t num_bytes) {
  size_t block = kSmallestBlock;
  while (block < num_bytes) block *= 2;
  return block;
}

}  // namespace

struct ResultMemory::Allocator {
  std::shared_ptr<ResultMemory> memory;
  void AllocData(DLTensor* tensor) {
    tensor->data = memory->Take(BlockBytes(tvm::ffi::GetDataSize(*tensor)));
  }
  void FreeData(DLTensor* tensor) {
    memory->Return(tensor->data, BlockBytes(tvm::ffi::GetDataSize(*tensor)));
  }
};

ResultMemory::~ResultMemory() {
  for (const auto& [bytes, blocks] : free_)
    for (void* block : blocks) std::free(block);
}

tvm::ffi::Tensor ResultMemory::NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) {
  return tvm::ffi::Tensor::FromNDAlloc(Allocator{shared_from_this()}, shape, dtype, {kDLCPU, 0});
}

void* ResultMemory::Take(size_t block_bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<void*>& blocks = free_[block_bytes];
    if (!blocks.empty()) {
      void* block = blocks.back();
      blocks.pop_back();
      return block;
    }
  }
  void* block = std::aligned_alloc(kAlignment, block_bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void ResultMemory::Return(void* block, size_t block_bytes) noexcept {
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    free_[block_bytes].push_back(block);
  } catch (const std::bad_alloc&) {
    std::free(block);
  }
}

}  // namespace distir::runtime
