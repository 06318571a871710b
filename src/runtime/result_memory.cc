#include "runtime/result_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <utility>

namespace distir::runtime {

namespace {

constexpr size_t kSmallestBlock = 4096;
constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

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
      kept_bytes_ -= block_bytes;
      return block;
    }
  }
  const bool is_huge = block_bytes >= kHugePage;
  void* block = std::aligned_alloc(is_huge ? kHugePage : kAlignment, block_bytes);
  if (block == nullptr) throw std::bad_alloc();
  if (is_huge) madvise(block, block_bytes, MADV_HUGEPAGE);  // a wish
  return block;
}

void ResultMemory::Return(void* block, size_t block_bytes) noexcept {
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    if (kept_bytes_ + block_bytes <= most_kept_bytes_) {
      free_[block_bytes].push_back(block);
      kept_bytes_ += block_bytes;
      return;
    }
  } catch (const std::bad_alloc&) {
  }
  std::free(block);
}

}  // namespace distir::runtime
