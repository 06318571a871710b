// Keeps freed host memory by size for later results.
#include "runtime/communicators/result_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "runtime/kernels/strided_copy.h"

namespace distir::runtime {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

class ProcessMemory : public BlockSource {
 public:
  void* Allocate(size_t bytes) final {
    const bool is_huge = bytes >= kHugePage;
    void* block = std::aligned_alloc(is_huge ? kHugePage : kAlignment, bytes);
    if (block == nullptr) throw std::bad_alloc();
    if (is_huge) madvise(block, bytes, MADV_HUGEPAGE);  // a wish
    return block;
  }
  void Free(void* block, size_t) noexcept final { std::free(block); }
  // Whoever sends a million small arrays is given little more memory than that.
  size_t SmallestBlock() const final { return kAlignment; }
};

}  // namespace

struct ResultMemory::Allocator {
  std::shared_ptr<ResultMemory> memory;
  void AllocData(DLTensor* tensor) {
    tensor->data = memory->Take(memory->BlockBytes(tvm::ffi::GetDataSize(*tensor)));
  }
  void FreeData(DLTensor* tensor) {
    memory->Return(tensor->data, memory->BlockBytes(tvm::ffi::GetDataSize(*tensor)));
  }
};

ResultMemory::ResultMemory(size_t most_kept_bytes, std::unique_ptr<BlockSource> source)
    : most_kept_bytes_(most_kept_bytes),
      source_(source == nullptr ? std::unique_ptr<BlockSource>(new ProcessMemory())
                                : std::move(source)) {}

ResultMemory::~ResultMemory() { FreeKept(); }

void ResultMemory::FreeKept() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [bytes, blocks] : free_)
    for (void* block : blocks) source_->Free(block, bytes);
  free_.clear();
  kept_bytes_ = 0;
}

tvm::ffi::Tensor ResultMemory::NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype) {
  CheckedBytes(shape, dtype);
  return tvm::ffi::Tensor::FromNDAlloc(Allocator{shared_from_this()}, shape, dtype, {kDLCPU, 0});
}

size_t ResultMemory::BlockBytes(size_t num_bytes) const {
  // One that is not kept need not be found again; twice its addresses may be more than there are.
  if (num_bytes > most_kept_bytes_) return (num_bytes + kHugePage - 1) / kHugePage * kHugePage;
  size_t block = source_->SmallestBlock();
  while (block < num_bytes) block *= 2;
  return block;
}

void* ResultMemory::Take(size_t block_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = free_.find(block_bytes);
  if (found == free_.end() || found->second.empty()) return source_->Allocate(block_bytes);
  std::vector<void*>& blocks = found->second;
  void* block = blocks.back();
  blocks.pop_back();
  kept_bytes_ -= block_bytes;
  return block;
}

void ResultMemory::Return(void* block, size_t block_bytes) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (kept_bytes_ + block_bytes <= most_kept_bytes_) {
    try {
      free_[block_bytes].push_back(block);
      kept_bytes_ += block_bytes;
      return;
    } catch (const std::bad_alloc&) {
    }
  }
  source_->Free(block, block_bytes);
}

}  // namespace distir::runtime
