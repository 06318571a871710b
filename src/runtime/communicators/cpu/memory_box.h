/*!
 * \file runtime/communicators/cpu/memory_box.h
 * \brief Box of a tensor in host memory that is sent or received.
 */
#ifndef DISTIR_RUNTIME_COMMUNICATORS_CPU_MEMORY_BOX_H_
#define DISTIR_RUNTIME_COMMUNICATORS_CPU_MEMORY_BOX_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/communicators/communicator.h"
#include "runtime/kernels/strided_copy.h"

namespace distir::runtime::cpu {

struct MemoryBox {
  int64_t call;  // of a function, in which it is sent or received
  DLDataType dtype;
  std::vector<int64_t> extent;
  std::vector<int64_t> byte_strides;
  char* data;

  bool Matches(const MemoryBox& other) const {
    return call == other.call && dtype == other.dtype && extent == other.extent;
  }
  std::string Describe() const;
};

using PeerAndBox = std::function<void(int peer, const MemoryBox& box)>;

/*!
 * \brief A worker's part of a transfer: all sends, then all receives; what it sends to itself is
 * copied, in the order of the plan. As sends must not wait for receives, this cannot deadlock.
 * \throws ValueError if what a worker sends to itself is not what it expects.
 */
void MoveBoxes(const TransferPlan& plan, int64_t call, int rank, const tvm::ffi::TensorView* x,
               const tvm::ffi::TensorView* out, const PeerAndBox& send, const PeerAndBox& receive);

/*! \brief The group member's block of `dim` of x, and the copy of it to `out`. */
struct BoxOfSlice {
  BoxCopy copy;
  const char* source;
};
BoxOfSlice SliceOf(const Group& group, const tvm::ffi::TensorView& x, int dim,
                   const tvm::ffi::TensorView& out);

/*! \brief out = the group member's block of `dim` of x; Communicator::Slice on the host. */
void CopySlice(const Group& group, const tvm::ffi::TensorView& x, int dim,
               const tvm::ffi::TensorView& out);

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_COMMUNICATORS_CPU_MEMORY_BOX_H_
