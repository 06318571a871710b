/*!
 * \file runtime/communicators/cpu/packed_collective.h
 * \brief Runs a library's collective (library_collectives.h) piece by piece.
 *
 * Blocks of tensors are packed into pieces of bounded size, some of which are on their way at a
 * time: so tensors need not be contiguous, counts fit into 32 bits, and memory that a library has
 * is never a tensor's.
 *
 * Example: in an all-gather along dimension 1 of [2, 3] from four members the block is [2, 3], has
 * one source, the operand, and four targets in the result, 3 elements after each other.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_PACKED_COLLECTIVE_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_PACKED_COLLECTIVE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/communicators/library_collectives.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::cpu {

/*! \brief Memory of pieces, of the kind that tensors are in, and what copies to and from it. */
class PieceMemory {
 public:
  virtual ~PieceMemory() = default;
  /*! \brief Limit of the bytes on the larger side of a piece. */
  virtual int64_t piece_bytes() const = 0;
  virtual std::shared_ptr<char> New(int64_t num_bytes) = 0;
  virtual void Copy(const BoxCopy& copy, const char* source, char* target) = 0;
  /*! \brief Waits until all copies are done: the library is given the memory next. */
  virtual void AwaitCopies() {}
};

struct PackedCollective {
  LibraryCall call;
  /*! \brief Extents and strides of a block; strides in bytes. */
  std::vector<int64_t> extent, source_strides, target_strides;
  /*! \brief Begins of blocks: one, or one for each member. */
  std::vector<const char*> sources;
  std::vector<char*> targets;

  /*! \brief Least number of bytes that a member sends. */
  int64_t LeastBytes(int num_members) const;

  /*! \param memory Of the host if it is null. */
  void Run(LibraryCollectives* library, const std::vector<int>& ranks, const WaitUntil& wait,
           const std::function<std::string()>& describe, PieceMemory* memory = nullptr) const;
};

// Those of a group of `n` members; arguments as those of Communicator.
PackedCollective PackedAllReduce(const LibraryCall& call, const tvm::ffi::TensorView& x,
                                 const tvm::ffi::TensorView& out);
PackedCollective PackedAllGather(const LibraryCall& call, const tvm::ffi::TensorView& x, int dim,
                                 const tvm::ffi::TensorView& out, int n);
PackedCollective PackedReduceScatter(const LibraryCall& call, const tvm::ffi::TensorView& x,
                                     int dim, const tvm::ffi::TensorView& out, int n);
PackedCollective PackedAllToAll(const LibraryCall& call, const tvm::ffi::TensorView& x,
                                int split_dim, int concat_dim, const tvm::ffi::TensorView& out,
                                int n);

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_PACKED_COLLECTIVE_H_
