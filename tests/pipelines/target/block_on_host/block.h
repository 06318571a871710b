/*!
 * \file tests/pipelines/target/block_on_host/block.h
 * \brief Runs a CUDA kernel on the host: the blocks of its grid one after the other, the threads of
 * a block as coroutines of one thread, which change at barriers. It stands before the kernel's
 * source, with this folder before CUDA's headers.
 */
#ifndef DISTIR_TESTS_BLOCK_ON_HOST_BLOCK_H_
#define DISTIR_TESTS_BLOCK_ON_HOST_BLOCK_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

inline uint3 threadIdx;
inline uint3 blockIdx;

/*! \brief Lets threads go on when so many have come. */
struct Barrier {
  unsigned count = 0, arrived = 0, generation = 0;
};

/*! \brief A thread of the block. */
struct HostThread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  uint3 index;
  const Barrier* waits_for = nullptr;
  unsigned generation = 0;
  bool is_done = false;
};

constexpr size_t kStackBytes = 256 << 10;

inline ucontext_t scheduler;
inline HostThread* running = nullptr;
inline Barrier barrier_of_block;

inline void WaitFor(Barrier& barrier) {
  const unsigned generation = barrier.generation;
  if (++barrier.arrived == barrier.count) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  running->waits_for = &barrier;
  running->generation = generation;
  swapcontext(&running->context, &scheduler);
}

inline void __syncthreads() { WaitFor(barrier_of_block); }

// As much as a block of any GPU has.
alignas(64) inline unsigned char buf_dyn_shmem_ptr[228 << 10];

template <typename Kernel>
void RunOnHost(uint3 grid, uint3 block, Kernel kernel) {
  static Kernel* called;
  called = &kernel;
  void (*begin)() = [] {
    (*called)();
    running->is_done = true;
  };
  std::vector<HostThread> threads(block.x * block.y * block.z);
  for (HostThread& thread : threads) thread.stack = std::make_unique<char[]>(kStackBytes);
  for (unsigned index = 0; index < grid.x * grid.y * grid.z; ++index) {
    blockIdx = {index % grid.x, index / grid.x % grid.y, index / grid.x / grid.y};
    barrier_of_block = {static_cast<unsigned>(threads.size())};
    for (unsigned i = 0; i < threads.size(); ++i) {
      HostThread& thread = threads[i];
      thread.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
      thread.is_done = false;
      thread.waits_for = nullptr;
      getcontext(&thread.context);
      thread.context.uc_stack = {thread.stack.get(), 0, kStackBytes};
      thread.context.uc_link = &scheduler;
      makecontext(&thread.context, begin, 0);
    }
    for (bool is_done = false; !is_done;) {
      is_done = true;
      for (HostThread& thread : threads) {
        if (thread.is_done) continue;
        is_done = false;
        const Barrier* barrier = thread.waits_for;
        if (barrier != nullptr && barrier->generation == thread.generation) continue;
        running = &thread;
        threadIdx = thread.index;
        swapcontext(&scheduler, &thread.context);
      }
    }
  }
}

#endif  // DISTIR_TESTS_BLOCK_ON_HOST_BLOCK_H_
