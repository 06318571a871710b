/*!
 * \file runtime/communicators/result_memory.h
 * \brief Cache of host memory for tensors that are allocated and freed in every call.
 *
 * Fresh memory of the system costs a fault per page, which takes longer than to fill it. Freed
 * blocks are kept by size, rounded up to a power of two, so symbolic extents that change from call
 * to call find them, too; pages that nobody has touched cost nothing.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_RESULT_MEMORY_H_
#define DISTIR_RUNTIME_COMMUNICATORS_RESULT_MEMORY_H_

#include <tvm/ffi/container/tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace distir::runtime {

/*! \brief Source of blocks. Called one at a time. */
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /*! \brief A block of this many bytes, a power of two if it may be kept. \throws if there is none.
   */
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* block, size_t bytes) noexcept = 0;
  /*! \brief Bytes of the smallest block, a power of two: a page, unless a source divides pages. */
  virtual size_t SmallestBlock() const { return 4096; }
};

/*! \brief Thread safe; tensors may outlive it. */
class ResultMemory : public std::enable_shared_from_this<ResultMemory> {
 public:
  /*!
   * \param most_kept_bytes Limit of the bytes of freed blocks that are kept.
   * \param source Source of blocks; the process's own memory, if it is left out.
   */
  explicit ResultMemory(size_t most_kept_bytes = SIZE_MAX,
                        std::unique_ptr<BlockSource> source = nullptr);
  ~ResultMemory();

  /*! \brief A row-major tensor with arbitrary contents. \throws ValueError for sizes that wrap. */
  tvm::ffi::Tensor NewTensor(tvm::ffi::ShapeView shape, DLDataType dtype);

  /*! \brief Frees the blocks that are kept. */
  void FreeKept() noexcept;

 private:
  struct Allocator;

  size_t BlockBytes(size_t num_bytes) const;
  void* Take(size_t block_bytes);
  void Return(void* block, size_t block_bytes) noexcept;

  const size_t most_kept_bytes_;
  const std::unique_ptr<BlockSource> source_;
  std::mutex mutex_;
  size_t kept_bytes_ = 0;
  std::map<size_t, std::vector<void*>> free_;  // by bytes of a block
};

}  // namespace distir::runtime

#endif  // DISTIR_RUNTIME_COMMUNICATORS_RESULT_MEMORY_H_
