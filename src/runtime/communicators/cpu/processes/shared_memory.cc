// Maps the memory that the worker processes of a host share.
#include "runtime/communicators/cpu/processes/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/communicators/cpu/processes/futex.h"

namespace distir::runtime::cpu {

namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "atomics work between processes");

constexpr size_t kPage = 4096;

// Of the 128 TiB that a process can map, for all arenas; the rest is the process's own.
constexpr size_t kMostArenas = size_t{64} << 40;

size_t RoundUp(size_t size) { return (size + kPage - 1) / kPage * kPage; }

int CheckedCount(int num_workers) {
  constexpr int kMostWorkers = 1 << 16;
  if (num_workers < 1 || num_workers > kMostWorkers) {
    TVM_FFI_THROW(ValueError) << "there are " << num_workers << " worker processes, not 1 to "
                              << kMostWorkers;
  }
  return num_workers;
}

[[noreturn]] void ThrowSystemError(const char* action) {
  const int error = errno;
  TVM_FFI_THROW(RuntimeError) << "cannot " << action
                              << " shared memory for worker processes: " << std::strerror(error);
  TVM_FFI_UNREACHABLE();
}

}  // namespace

size_t PhysicalMemory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

SharedMemory::SharedMemory(int num_workers, size_t arena_bytes)
    : num_workers_(CheckedCount(num_workers)),
      arena_bytes_(RoundUp(std::min(arena_bytes, kMostArenas / (2 * num_workers_)))) {
  descriptor_ = memfd_create("distir", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor_ < 0) ThrowSystemError("create");
  // A process that could shorten it would end all others at their next access.
  if (ftruncate(descriptor_, static_cast<off_t>(all_bytes())) != 0 ||
      fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    close(descriptor_);
    ThrowSystemError("size");
  }
  Map();
}

// The size says how many workers there are, and how large an arena is: nobody can change that.
SharedMemory::SharedMemory(int descriptor, int num_workers)
    : num_workers_(num_workers), descriptor_(descriptor) {
  struct stat file{};
  CheckedCount(num_workers);
  if (fstat(descriptor_, &file) != 0) ThrowSystemError("inspect");
  const size_t arenas = 2 * static_cast<size_t>(num_workers);
  const size_t total = static_cast<size_t>(file.st_size);
  const size_t least = all_bytes();
  if (total <= least || (total - least) % (arenas * kPage) != 0) {
    close(descriptor_);
    TVM_FFI_THROW(ValueError) << "shared memory of " << total << " bytes is not that of "
                              << num_workers << " workers";
  }
  arena_bytes_ = (total - least) / arenas;
  Map();
}

size_t SharedMemory::counts_begin() const {
  return sizeof(Header) + static_cast<size_t>(num_workers_) * sizeof(WorkerStatus);
}

size_t SharedMemory::places_begin() const {
  const size_t n = static_cast<size_t>(num_workers_);
  return counts_begin() + n * n * sizeof(RingCounts);
}

size_t SharedMemory::fixed_bytes() const {
  const size_t n = static_cast<size_t>(num_workers_);
  return RoundUp(places_begin() + n * n * Ring::kCapacity * sizeof(std::atomic<uint64_t>));
}

size_t SharedMemory::all_bytes() const {
  const size_t n = static_cast<size_t>(num_workers_);
  return fixed_bytes() + 2 * n * arena_bytes_ + n;
}

void SharedMemory::Map() {
  void* base = mmap(nullptr, all_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                    descriptor_, 0);
  if (base == MAP_FAILED) {
    close(descriptor_);
    ThrowSystemError("map");
  }
  base_ = static_cast<char*>(base);
  arenas_ = base_ + fixed_bytes();
}

SharedMemory::~SharedMemory() {
  munmap(base_, all_bytes());
  close(descriptor_);
}

WorkerStatus& SharedMemory::status(int rank) const {
  return reinterpret_cast<WorkerStatus*>(base_ + sizeof(Header))[rank];
}

Ring SharedMemory::ring(int source, int target) const {
  const size_t pair = static_cast<size_t>(source) * num_workers_ + target;
  return {
      reinterpret_cast<RingCounts*>(base_ + counts_begin()) + pair,
      reinterpret_cast<std::atomic<uint64_t>*>(base_ + places_begin()) + pair * Ring::kCapacity};
}

bool SharedMemory::Abort(int rank) noexcept {
  int32_t none = 0;
  const bool first = header().first_failure.compare_exchange_strong(none, rank + 2);
  for (int r = 0; r < num_workers_; ++r) Wake(&status(r).doorbell);
  return first;
}

}  // namespace distir::runtime::cpu
