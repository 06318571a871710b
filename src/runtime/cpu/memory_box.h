/*!
 * \file runtime/cpu/memory_box.h
 * \brief A box of a tensor in host memory: what is sent, where it is received.
 */
#ifndef DISTIR_RUNTIME_CPU_MEMORY_BOX_H_
#define DISTIR_RUNTIME_CPU_MEMORY_BOX_H_

#include <tvm/ffi/container/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/communicator.h"

namespace distir::runtime::cpu {

struct MemoryBox {
  int64_t step;  // in which it is sent or received
  DLDataType dtype;
  std::vector<int64_t> extent;
  std::vector<int64_t> byte_strides;
  char* data;

  bool Matches(const MemoryBox& other) const {
    return step == other.step && dtype == other.dtype && extent == other.extent;
  }
  std::string Describe() const;
};

/*! \brief The box that a piece of a transfer is of a worker's tensor. */
MemoryBox BoxOfPiece(int64_t step, const TransferPiece& piece, const std::vector<int64_t>& units,
                     const tvm::ffi::TensorView& tensor);

/*! \brief Copies what a worker sends to itself. \throws ValueError if the boxes do not match. */
void CopyBox(const MemoryBox& source, const MemoryBox& target);

/*! \brief out = the group member's block of `dim` of x; Communicator::Slice on the host. */
void CopySlice(const Group& group, const tvm::ffi::TensorView& x, int dim,
               const tvm::ffi::TensorView& out);

}  // namespace distir::runtime::cpu

#endif  // DISTIR_RUNTIME_CPU_MEMORY_BOX_H_
