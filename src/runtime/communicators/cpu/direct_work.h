/*!
 * \file runtime/communicators/cpu/direct_work.h
 * \brief Computes one member's share of a collective when it can see the buffers of all members.
 *
 * All that can fail is done when the object is made; running it does not throw, since the other
 * members rely on this one by then. Members run it at the same time: each writes what no other one
 * does. Outputs of members may be one and the same: then it is written once.
 *
 * Example, member 1 of 3:
 * \code
 *   AllReduceWork work(x, ReduceKind::kSum, 3, 1);
 *   ... all members have shown their buffers ...
 *   work(buffers);  // the middle third of everybody's output
 * \endcode
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_DIRECT_WORK_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_DIRECT_WORK_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <vector>

#include "runtime/kernels/reduce.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::cpu {

/*! \brief A member's operand and result. */
struct Buffers {
  const char* x = nullptr;
  char* out = nullptr;
};

/*!
 * \brief Begin of a member's part of an all-reduce of `count` elements; its end is where the next
 *        one begins. Parts begin at cache lines, so that no two members write to one.
 */
int64_t PartBegin(int64_t count, int size, int position);

/*! \brief Reduces a part of the elements for everybody. */
class AllReduceWork {
 public:
  AllReduceWork(const tvm::ffi::TensorView& x, ReduceKind kind, int size, int position);
  void operator()(const Buffers* members) noexcept;

 private:
  const int size_, position_;
  const int64_t element_bytes_;
  int64_t begin_, end_;
  ReduceFunction reduce_;
  std::vector<const void*> sources_;
  std::vector<void*> outs_;
};

/*! \brief Gathers all blocks; of an output that several members have, some of them. */
class AllGatherWork {
 public:
  AllGatherWork(const tvm::ffi::TensorView& x, int dim, const tvm::ffi::TensorView& out, int size,
                int position);
  void operator()(const Buffers* members) const noexcept;

 private:
  const int size_, position_;
  const BoxCopy copy_;
  int64_t block_bytes_;
};

/*! \brief Reduces the member's own block. */
class ReduceScatterWork {
 public:
  ReduceScatterWork(const tvm::ffi::TensorView& x, int dim, ReduceKind kind,
                    const tvm::ffi::TensorView& out, int size, int position);
  void operator()(const Buffers* members) noexcept;

 private:
  const int size_, position_;
  const int64_t element_bytes_;
  const ReduceFunction reduce_;
  int64_t outer_ = 1, run_ = 1;  // the block is `outer` runs of consecutive elements
  std::vector<const void*> sources_;
};

/*! \brief Fetches a block from everybody. */
class AllToAllWork {
 public:
  AllToAllWork(const tvm::ffi::TensorView& x, int split_dim, int concat_dim,
               const tvm::ffi::TensorView& out, int size, int position);
  void operator()(const Buffers* members) const noexcept;

 private:
  const int size_, position_;
  const BoxCopy copy_;
  int64_t x_offset_, out_step_;
};

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_DIRECT_WORK_H_
