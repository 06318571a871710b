// Keeps cudaMalloc memory for libraries that communicate from it.
#include "runtime/communicators/nccl/devices/library_buffers.h"

#include <string>

#include "runtime/communicators/nccl/library.h"

namespace distir::runtime::nccl {

namespace {

// Sizes are powers of two from this one on, so that buffers of one call do for the next.
constexpr int64_t kSmallest = 64 << 10;

int64_t RoundedUp(int64_t num_bytes) {
  int64_t size = kSmallest;
  while (size < num_bytes) size *= 2;
  return size;
}

}  // namespace

LibraryBuffers::~LibraryBuffers() {
  for (const auto& [size, buffers] : free_)
    for (char* buffer : buffers) Cuda().cudaFree(buffer);
}

std::shared_ptr<char> LibraryBuffers::New(int64_t num_bytes) {
  const int64_t size = RoundedUp(num_bytes);
  char* buffer = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<char*>& kept = free_[size];
    if (!kept.empty()) {
      buffer = kept.back();
      kept.pop_back();
    }
  }
  if (buffer == nullptr) {
    void* data = nullptr;
    CheckCuda(Cuda().cudaMalloc(&data, static_cast<size_t>(size)),
              "allocating " + std::to_string(size) + " bytes for collectives");
    buffer = static_cast<char*>(data);
  }
  return std::shared_ptr<char>(buffer, [self = shared_from_this(), size](char* given_back) {
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->free_[size].push_back(given_back);
  });
}

}  // namespace distir::runtime::nccl
