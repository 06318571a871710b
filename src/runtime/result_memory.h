/*!
 * \file runtime/result_memory.h
 * \brief Host memory of tensors that come and go in every call, kept for the next ones.
 *
 * Fresh memory of the system costs a fault per page, which takes as long as the collective that
 * fills it. Freed blocks are kept by size, rounded up to a power of two, so symbolic extents that
 * change from call to call find them, too; pages that nobody has touched cost nothing.
 */
#ifndef DISTIR_RUNTIME_RESULT_MEMORY_H_
#define DISTIR_RUNTIME_RESULT_MEMORY_H_

#include <tvm/ffi/container/tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace distir::runtime {

/*! \brief Thread safe; tensors may outlive it. */
class ResultMemory : public std::enable_shared_from_this<ResultMemory> {
 public:
  ~ResultMemory();

  /*! \brief A row-major tensor with arbitrary contents. */
  tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype);

 private:
  struct Allocator;

  void* Take(size_t block_bytes);
  void Return(void* block, size_t block_bytes) noexcept;

  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;  // by bytes of a block
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_RESULT_MEMORY_H_
