/*!
 * \file runtime/communicators/cpu/processes/shared_tensors.h
 * \brief Allocates a worker's tensors in memory shared with the workers of its host.
 *
 * Others see them by their place. Freed memory is given back to the system, its addresses are used
 * again for blocks of the same size.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_SHARED_TENSORS_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_SHARED_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/communicators/cpu/processes/shared_memory.h"
#include "runtime/communicators/result_memory.h"

namespace distir::runtime::cpu {

class SharedTensors : public BlockSource {
 public:
  SharedTensors(std::shared_ptr<SharedMemory> memory, int rank);

  /*! \throws RuntimeError if the addresses are used up. */
  void* Allocate(size_t bytes) final;
  void Free(void* block, size_t bytes) noexcept final;

 private:
  const std::shared_ptr<SharedMemory> memory_;
  char* const base_;
  size_t used_bytes_ = 0;  // blocks lie before it
  std::map<size_t, std::vector<void*>> free_;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PROCESSES_SHARED_TENSORS_H_
