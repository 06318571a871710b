/*!
 * \file tests/pipelines/target/block_on_host/block.h
 * \brief Runs a CUDA kernel on the host: the blocks of its grid one after the other, the threads of
 * a block as threads. It stands before the kernel's source, with this folder before CUDA's headers.
 */
#ifndef DISTIR_TESTS_BLOCK_ON_HOST_BLOCK_H_
#define DISTIR_TESTS_BLOCK_ON_HOST_BLOCK_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <pthread.h>

#include <cmath>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline pthread_barrier_t barrier_of_block;

inline void __syncthreads() { pthread_barrier_wait(&barrier_of_block); }

// As much as a block of any GPU has.
alignas(64) inline unsigned char buf_dyn_shmem_ptr[228 << 10];

template <typename Kernel>
void RunOnHost(uint3 grid, uint3 block, Kernel kernel) {
  pthread_barrier_init(&barrier_of_block, nullptr, block.x * block.y * block.z);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        std::vector<std::thread> threads;
        for (unsigned k = 0; k < block.z; ++k)
          for (unsigned j = 0; j < block.y; ++j)
            for (unsigned i = 0; i < block.x; ++i)
              threads.emplace_back([=] {
                blockIdx = {x, y, z};
                threadIdx = {i, j, k};
                kernel();
              });
        for (std::thread& thread : threads) thread.join();
      }
    }
  }
  pthread_barrier_destroy(&barrier_of_block);
}

#endif  // DISTIR_TESTS_BLOCK_ON_HOST_BLOCK_H_
